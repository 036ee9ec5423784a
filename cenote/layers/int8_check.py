"""Check of a model that was quantized to int8 while it was read: its worst layers are read again, unquantized."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from cenote.kernels.cpu.library import Format
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import try_fuse_encoder
from cenote.layers.int8 import Int8Quantizer
from cenote.layers.matmul_format import (
    UNQUANTIZED_SHARES,
    MatmulReport,
    describe_matmuls,
    find_min_cosine,
    leave_out_worst,
    summarize_states,
)
from cenote.layers.post_load import process_weights_after_loading
from cenote.packed_batch import PackedBatch

logger = logging.getLogger("cenote")


class Int8Check:
    """Compares a quantized model with the one of its checkpoint, of which only blocks are in memory."""

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
        worst = sorted(self.errors, key=lambda layer: -self.errors[layer])
        cosine, count = leave_out_worst(self._measure(), worst, (*UNQUANTIZED_SHARES, 1.0), self._leave_out)
        report = replace(report, cosine=cosine, num_unquantized=count, unquantized=dtype, reference=dtype)
        if report.num_unquantized == len(self.quantizer.layers):
            report = describe_matmuls(self.model) or MatmulReport(dtype, "torch")
        logger.info("%s", report)
        return report

    def _run_unquantized(self) -> Tensor:
        def compute(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            exact = self.quantizer.compute_unquantized(layer, inputs[0])
            error = (output.float() - exact.float()).norm() / exact.float().norm().clamp(min=1e-20)
            self.errors[layer] = max(error.item(), self.errors.get(layer, 0.0))
            return exact

        hooks = [layer.register_forward_hook(compute) for layer in self.quantizer.layers]
        try:
            return summarize_states(self.model, self.sample)
        finally:
            for hook in hooks:
                hook.remove()

    def _measure(self) -> float:
        return find_min_cosine(summarize_states(self.model, self.sample), self.reference)

    def _leave_out(self, layers: Sequence[nn.Module]) -> float:
        self.backbone.fused_encoder = None
        linears = {layer: self.quantizer.read_linear(layer) for layer in layers if layer not in self.replaced}
        self.replaced.update(linears)
        for parent in list(self.model.modules()):
            for name, child in parent.named_children():
                if child in linears:
                    setattr(parent, name, linears[child])
        process_weights_after_loading(self.model, torch.device("cpu"), None)
        self.backbone.fused_encoder = try_fuse_encoder(self.backbone)
        return self._measure()
