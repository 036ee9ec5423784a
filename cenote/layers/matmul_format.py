"""The format in which the linear layers of a loaded model multiply on a CPU, checked against float32."""

from __future__ import annotations

import logging
from collections.abc import Collection

import torch
from torch import Tensor, nn

from cenote.config.engine import Quantization
from cenote.kernels.cpu.format_search import MatmulReport, check_format, relative_error, summarize_states
from cenote.kernels.cpu.library import Format, supports_format
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import can_fuse_layers, try_fuse_encoder
from cenote.layers.pack_linears import list_linears, pack_linears
from cenote.layers.packed_linear import PackedLinearModule, pack_linear
from cenote.layers.post_load import process_weights_after_loading
from cenote.layers.torch_dtypes import to_array
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array

logger = logging.getLogger("cenote")


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
    reference = summarize(model, sample) if is_checked and sample is not None else None
    if matmul_dtype is torch.bfloat16:
        if quantization is None and can_fuse_layers(backbone, "bfloat16"):
            pack_linears(backbone.layers, "bfloat16")
        matmul_dtype = torch.float32  # of what is left in float32
    process_weights_after_loading(model, device, quantization, matmul_dtype)
    backbone.fused_encoder = try_fuse_encoder(backbone)
    if (report := describe_matmuls(model)) is None:
        return None
    if sample is not None and reference is not None:
        report = check_format(PackedModel(model, backbone, sample, linears), report, reference)
        logger.info("%s", report)
    return report


def describe_matmuls(model: nn.Module) -> MatmulReport | None:
    """Return the format and the level of the first layer with a kernel of this project; None if there is none."""
    for layer in model.modules():
        if isinstance(layer, PackedLinearModule):
            return MatmulReport(layer.format, layer.level.name)
    return None


def _has_kernels(model: nn.Module, format: Format) -> bool:
    return supports_format(format) and all(linear.weight.dtype == torch.float32 for _, _, linear in list_linears(model))


def summarize(model: nn.Module, sample: PackedBatch) -> Array:
    """Return what `summarize_states` does for the states of a sample."""
    with torch.inference_mode():
        return summarize_states(to_array(model(sample).float()), sample.seq_lens_cpu)


class PackedModel:
    """A model whose linear layers can be packed in several formats: a FormatModel."""

    def __init__(
        self,
        model: nn.Module,
        backbone: Backbone,
        sample: PackedBatch,
        linears: list[tuple[nn.Module, str, nn.Linear]],
    ) -> None:
        """`linears`: the layers in float32, with their parents and names."""
        self.model, self.backbone, self.sample, self.linears = model, backbone, sample, linears

    def summarize(self) -> Array:
        return summarize(self.model, self.sample)

    def rank_layers(self) -> list[nn.Module]:
        errors: dict[nn.Module, float] = {}

        def record(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            assert isinstance(layer, nn.Linear)
            quantized = pack_linear(layer, getattr(layer, "activation", None), "int8")(inputs[0])
            errors[layer] = relative_error(to_array(quantized), to_array(output))

        self._restore()
        hooks = [linear.register_forward_hook(record) for _, _, linear in self.linears]
        try:
            self.summarize()
        finally:
            for hook in hooks:
                hook.remove()
        return sorted(errors, key=lambda layer: -errors[layer])

    def set_format(self, format: Format, unquantized: Collection[nn.Module] = ()) -> None:
        self._restore()
        pack_linears(self.model, format, unquantized=unquantized)
        self.backbone.fused_encoder = try_fuse_encoder(self.backbone)

    def _restore(self) -> None:
        self.backbone.fused_encoder = None
        for parent, name, linear in self.linears:
            setattr(parent, name, linear)
