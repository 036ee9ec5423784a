"""Before numbers become int8: inputs of a layer that are always large are made smaller, and their weights larger."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cenote.packed_batch import PackedBatch, pack_sequences

# enough to find the inputs that stand out; which texts they are of matters little
NUM_SEQUENCES, SEQUENCE_LENGTH = 16, 16


def compute_smooth_scales(module: nn.Module) -> dict[nn.Module, Tensor]:
    """What to multiply the inputs of its linear layers with, found by reading tokens at random; weights are divided.

    Only of layers that widen: what they read is the same normed state, in which the large inputs always are the same.
    """
    largest: dict[nn.Module, Tensor] = {}
    if (batch := _calibration_batch(module)) is None:
        return {}

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen = inputs[0].detach().reshape(-1, inputs[0].shape[-1]).float().abs().amax(dim=0)
        largest[layer] = torch.maximum(largest[layer], seen) if layer in largest else seen

    wide = [x for x in module.modules() if isinstance(x, nn.Linear) and x.out_features > x.in_features]
    hooks = [layer.register_forward_pre_hook(note) for layer in wide]
    try:
        with torch.inference_mode():
            module(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {layer: _layer_scales(layer, seen) for layer, seen in largest.items() if isinstance(layer, nn.Linear)}


def _layer_scales(layer: nn.Linear, input_max: Tensor) -> Tensor:
    """So that inputs and weights stand out by as much: the square root of weight over input, near 1 on the whole."""
    weights = layer.weight.detach().float().abs().amax(dim=0)
    factors = (weights.clamp(min=1e-4) / input_max.clamp(min=1e-3)).sqrt()
    return factors.clone() / factors.log().mean().exp()


def _calibration_batch(module: nn.Module) -> PackedBatch | None:
    """Of the vocabulary of a whole model; None for a part of one."""
    table = next((x for x in module.modules() if isinstance(x, nn.Embedding)), None)
    if table is None:
        return None
    tokens = torch.randint(
        0, table.num_embeddings, (NUM_SEQUENCES, SEQUENCE_LENGTH), generator=torch.Generator().manual_seed(0)
    )
    return pack_sequences(tokens.tolist())
