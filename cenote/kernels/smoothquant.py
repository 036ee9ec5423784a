"""SmoothQuant: per-channel scales that move activation outliers into the weights before int8 quantization."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.packed_batch import PackedBatch, pack_sequences

# enough to find outlier channels, which depend little on the text
NUM_SEQUENCES, SEQUENCE_LENGTH = 16, 16


def compute_smooth_scales(module: nn.Module) -> dict[nn.Module, Tensor]:
    """Return the scales to multiply the inputs of linear layers with (weights are divided), from random tokens.

    Only layers with more outputs than inputs get scales: they read normalized states with stable outlier channels.
    """
    input_max: dict[nn.Module, Tensor] = {}
    if (batch := _calibration_batch(module)) is None:
        return {}

    def record_max(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        channel_max = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float().abs().amax(dim=0)
        input_max[layer] = torch.maximum(input_max[layer], channel_max) if layer in input_max else channel_max

    widening = [x for x in module.modules() if isinstance(x, nn.Linear) and x.out_features > x.in_features]
    hooks = [layer.register_forward_pre_hook(record_max) for layer in widening]
    try:
        with torch.inference_mode():
            module(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: _layer_scales(layer, maxima) for layer, maxima in input_max.items() if isinstance(layer, nn.Linear)}


def _layer_scales(layer: nn.Linear, input_max: Tensor) -> Tensor:
    """Return sqrt(weight max / input max) per channel, normalized to a geometric mean of 1."""
    weight_max = layer.weight.detach().float().abs().amax(dim=0)
    scales = (weight_max.clamp(min=1e-4) / input_max.clamp(min=1e-3)).sqrt()
    return scales.clone() / scales.log().mean().exp()


def _calibration_batch(module: nn.Module) -> PackedBatch | None:
    """Return random tokens of the vocabulary; None for a module without an embedding table."""
    table = next((x for x in module.modules() if isinstance(x, nn.Embedding)), None)
    if table is None:
        return None
    tokens = torch.randint(
        0, table.num_embeddings, (NUM_SEQUENCES, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0)
    )
    return pack_sequences(tokens.tolist())
