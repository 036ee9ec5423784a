"""Check of a model that was quantized to int8 while it was read: its worst layers are read again, unquantized."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.kernels.cpu.format_search import (
    UNQUANTIZED_SHARES,
    MatmulReport,
    find_min_cosine,
    leave_out_worst,
    relative_error,
)
from cenote.kernels.cpu.library import Format
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import try_fuse_encoder
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.matmul_format import describe_matmuls, summarize
from cenote.layers.post_load import process_weights_after_loading
from cenote.layers.torch_dtypes import to_array
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array

logger = logging.getLogger("cenote")


class Int8Check:
    """Compare a quantized model with the one of its checkpoint, of which only blocks are in memory: a FormatModel."""

    def __init__(self, model: nn.Module, backbone: Backbone, quantizer: Int8Quantizer, sample: PackedBatch) -> None:
        """The layers of the backbone are not fused yet: they are called one by one."""
        self.model = model
        self.backbone = backbone
        self.quantizer = quantizer
        self.sample = sample
        self.errors: dict[nn.Module, float] = {}  # of the layers that the sample reaches, relative to their results
        self.replaced: set[nn.Module] = set()  # quantized layers that the model does not use any more
        self.reference = self._run_unquantized()

    def run(self, report: MatmulReport | None) -> MatmulReport:
        """Return the report with the cosine, after replacing as many layers as it needs to be large enough."""
        dtype: Format = "bfloat16" if self.backbone.dtype is torch.bfloat16 else "float32"
        if report is None or report.format != "int8":
            report = MatmulReport("int8", "torch", is_weight_only=not self.quantizer.multiplies_int8)
        cosine = find_min_cosine(self.summarize(), self.reference)
        cosine, count = leave_out_worst(self, self.reference, cosine, (*UNQUANTIZED_SHARES, 1.0))
        report = replace(report, cosine=cosine, num_unquantized=count, unquantized=dtype, reference=dtype)
        if report.num_unquantized == len(self.quantizer.layers):
            report = describe_matmuls(self.model) or MatmulReport(dtype, "torch")
        logger.info("%s", report)
        return report

    def summarize(self) -> Array:
        return summarize(self.model, self.sample)

    def rank_layers(self) -> list[nn.Module]:
        return sorted(self.errors, key=lambda layer: -self.errors[layer])

    def set_format(self, format: Format, unquantized: Collection[nn.Module] = ()) -> None:
        """Read the unquantized layers from the checkpoint; the others are in int8 already."""
        assert format == "int8", "a model that is quantized while it is read has no other format"
        self.backbone.fused_encoder = None
        linears = {layer: self.quantizer.read_linear(layer) for layer in unquantized if layer not in self.replaced}
        self.replaced.update(linears)
        for parent in list(self.model.modules()):
            for name, child in parent.named_children():
                if child in linears:
                    setattr(parent, name, linears[child])
        process_weights_after_loading(self.model, torch.device("cpu"), None)
        self.backbone.fused_encoder = try_fuse_encoder(self.backbone)

    def _run_unquantized(self) -> Array:
        def compute(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            exact = self.quantizer.compute_unquantized(layer, inputs[0])
            error = relative_error(to_array(output.float()), to_array(exact.float()))
            self.errors[layer] = max(error, self.errors.get(layer, 0.0))
            return exact

        hooks = [layer.register_forward_hook(compute) for layer in self.quantizer.layers]
        try:
            return self.summarize()
        finally:
            for hook in hooks:
                hook.remove()
