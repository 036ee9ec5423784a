"""The format in which the linear layers of a loaded model multiply on a CPU, checked against float32."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from cenote.config.engine import Quantization
from cenote.kernels.cpu.library import Format, supports_format, unquantized_format
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import can_fuse_layers, try_fuse_encoder
from cenote.layers.pack_linears import list_linears, pack_linears
from cenote.layers.packed_linear import PackedLinearModule, pack_linear
from cenote.layers.post_load import process_weights_after_loading
from cenote.packed_batch import PackedBatch

logger = logging.getLogger("cenote")

MIN_COSINE: dict[Format, float] = {"float16": 0.9999, "int8": 0.995}
# shares of the layers that are not quantized, those with the largest errors first, until the cosine is large enough
UNQUANTIZED_SHARES = (0.1, 0.25, 0.5)


@dataclass(frozen=True, slots=True)
class MatmulReport:
    """How the linear layers of a model multiply, and what was measured at load."""

    format: Format
    level: str
    cosine: float | None = None  # the smallest with the reference; None: not measured
    num_unquantized: int = 0  # layers of an int8 model
    unquantized: str = ""  # their format
    reference: str = "float32"
    is_weight_only: bool = False  # int8 weights are dequantized for each product

    def __str__(self) -> str:
        text = f"{self.format} {'weights' if self.is_weight_only else 'products'}, {self.level} kernels"
        if self.num_unquantized:
            layers = "1 layer" if self.num_unquantized == 1 else f"{self.num_unquantized} layers"
            text += f", {layers} in {self.unquantized}"
        return text if self.cosine is None else f"{text}, cosine {self.cosine:.6f} with {self.reference}"


def prepare_matmuls(
    model: nn.Module,
    backbone: Backbone,
    device: torch.device,
    quantization: Quantization | None,
    matmul_dtype: torch.dtype,
    sample: PackedBatch | None,
) -> MatmulReport | None:
    """Prepack or quantize the linear layers of a model and fuse its layers.

    With `sample`, float16 and int8 are checked against float32 on it. A model whose float16 results differ too much is
    computed in float32, and the worst layers of an int8 model are not quantized. bfloat16 layers are packed if all run
    in one call; otherwise oneDNN and torch, which need no conversion between the layers, multiply. None: no kernels of
    this project are used.
    """
    format: Format = "int8" if quantization == "int8" else "float16" if matmul_dtype is torch.float16 else "float32"
    is_checked = sample is not None and format != "float32" and _has_kernels(model, format)
    linears = list_linears(model) if is_checked else []
    reference = summarize_states(model, sample) if is_checked and sample is not None else None
    if matmul_dtype is torch.bfloat16:
        if quantization is None and can_fuse_layers(backbone, "bfloat16"):
            pack_linears(backbone.layers, "bfloat16")
        matmul_dtype = torch.float32  # of what is left in float32
    process_weights_after_loading(model, device, quantization, matmul_dtype)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    if (report := describe_matmuls(model)) is None:
        return None
    if sample is not None and reference is not None:
        report = _check(model, backbone, report, sample, reference, linears)
        logger.info("%s", report)
    return report


def describe_matmuls(model: nn.Module) -> MatmulReport | None:
    """Return the format and the level of the first layer with a kernel of this project; None if there is none."""
    for layer in model.modules():
        if isinstance(layer, PackedLinearModule):
            return MatmulReport(layer.format, layer.level.name)
    return None


def _check(
    model: nn.Module,
    backbone: Backbone,
    report: MatmulReport,
    sample: PackedBatch,
    reference: Tensor,
    linears: list[tuple[nn.Module, str, nn.Linear]],
) -> MatmulReport:
    format, level = report.format, report.level
    cosine = find_min_cosine(summarize_states(model, sample), reference)
    if cosine >= MIN_COSINE[format]:
        return MatmulReport(format, level, cosine)
    if format == "int8":
        _restore(backbone, linears)
        worst = _by_error(model, sample, linears)

        def leave_out(unquantized: Collection[nn.Module]) -> float:
            _restore(backbone, linears)
            pack_linears(model, "int8", unquantized=unquantized)
            backbone.fused_encoder = try_fuse_encoder(backbone)
            return find_min_cosine(summarize_states(model, sample), reference)

        cosine, count = leave_out_worst(cosine, worst, UNQUANTIZED_SHARES, leave_out)
        if cosine >= MIN_COSINE["int8"]:
            return MatmulReport("int8", level, cosine, count, unquantized_format())
    logger.info("cosine %.6f of %s with float32 is below %s", cosine, format, MIN_COSINE[format])
    _restore(backbone, linears)
    other = unquantized_format() if format == "int8" else "float32"
    pack_linears(model, other)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    if other == "float32":
        return MatmulReport("float32", level)
    return _check(model, backbone, MatmulReport(other, level), sample, reference, linears)


def leave_out_worst(
    cosine: float,
    worst: Sequence[nn.Module],
    shares: Sequence[float],
    leave_out: Callable[[Sequence[nn.Module]], float],
) -> tuple[float, int]:
    """Leave more and more layers of an int8 model unquantized, the worst first, until its cosine is large enough.

    `leave_out` computes these layers in another format and returns the cosine. Return the last one, and their number.
    """
    count = 0
    for share in shares if worst else ():
        if cosine >= MIN_COSINE["int8"]:
            break
        count = max(1, round(share * len(worst)))
        logger.info("cosine %.6f of int8 is below %s: %d layers are not", cosine, MIN_COSINE["int8"], count)
        cosine = leave_out(worst[:count])
    return cosine, count


def _has_kernels(model: nn.Module, format: Format) -> bool:
    return supports_format(format) and all(linear.weight.dtype == torch.float32 for _, _, linear in list_linears(model))


def _restore(backbone: Backbone, linears: list[tuple[nn.Module, str, nn.Linear]]) -> None:
    backbone.fused_encoder = None
    for parent, name, linear in linears:
        setattr(parent, name, linear)


def summarize_states(model: nn.Module, sample: PackedBatch) -> Tensor:
    """Return the mean, the first and the last state of every sequence: what poolers read."""
    with torch.inference_mode():
        states = model(sample).float().split(list(sample.seq_lens_cpu))
        return torch.stack([row for x in states for row in (x.mean(dim=0), x[0], x[-1])])


def find_min_cosine(found: Tensor, reference: Tensor) -> float:
    cosines = cosine_similarity(found.double(), reference.double(), dim=-1)
    return -1.0 if cosines.isnan().any() else cosines.min().item()


def _by_error(
    model: nn.Module, sample: PackedBatch, linears: list[tuple[nn.Module, str, nn.Linear]]
) -> list[nn.Module]:
    """Return the layers by the error of their int8 products on the sample, relative to their results."""
    errors: dict[nn.Module, float] = {}

    def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        quantized = pack_linear(layer, getattr(layer, "activation", None), "int8")(inputs[0])
        errors[layer] = ((quantized - output).norm() / output.norm().clamp(min=1e-20)).item()

    hooks = [linear.register_forward_hook(record) for _, _, linear in linears]
    try:
        summarize_states(model, sample)
    finally:
        for hook in hooks:
            hook.remove()
    return sorted(errors, key=lambda layer: -errors[layer])
