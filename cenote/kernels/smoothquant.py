"""Find the outlier channels of a module for SmoothQuant, which moves them into the weights before quantization."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from cenote.packed_batch import PackedBatch, pack_sequences

# enough to find outlier channels, which depend little on the text
NUM_SEQUENCES, SEQUENCE_LENGTH = 16, 16


def record_input_max(module: nn.Module, layers: Iterable[nn.Module]) -> dict[nn.Module, Tensor]:
    """Run random tokens; return the largest absolute input per channel of the layers that were reached."""
    input_max: dict[nn.Module, Tensor] = {}
    if (batch := _calibration_batch(module)) is None:
        return {}

    def record_max(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        channel_max = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float().abs().amax(dim=0)
        input_max[layer] = torch.maximum(input_max[layer], channel_max) if layer in input_max else channel_max

    hooks = [layer.register_forward_pre_hook(record_max) for layer in layers]
    try:
        with torch.inference_mode():
            module(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: maxima.clone() for layer, maxima in input_max.items()}


def _calibration_batch(module: nn.Module) -> PackedBatch | None:
    """Return random tokens of the vocabulary; None for a module without an embedding table."""
    table = next((x for x in module.modules() if isinstance(x, nn.Embedding)), None)
    if table is None:
        return None
    tokens = torch.randint(
        0, table.num_embeddings, (NUM_SEQUENCES, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0)
    )
    return pack_sequences(tokens.tolist())
