"""The tensors that store one quantized weight, replaced by one reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from cenote.errors import LoadError
from cenote.loading.weights import CheckpointWeights

Tensors = Mapping[str, Tensor]  # by their names without that of the module


def replace_groups(
    weights: CheckpointWeights,
    device: torch.device,
    *,
    marker: str,
    parts: Sequence[str],
    optional: Sequence[str] = (),
    dequantize: Callable[[str, Tensors], Tensor],
) -> None:
    """Replace the tensors of every module with a tensor `.marker` by its dequantized `.weight`.

    `parts` must be there; `optional` tensors are passed if they are there.
    """
    for name in weights.names():
        if not name.endswith(f".{marker}"):
            continue
        module = name.removesuffix(f".{marker}")
        if missing := [f"{module}.{part}" for part in parts if f"{module}.{part}" not in weights]:
            raise LoadError(f"{weights.source}: {name} has no {', '.join(missing)}; download the model again")
        found = [part for part in (*parts, *optional) if f"{module}.{part}" in weights]
        file = weights.file_of(name)
        group = {part: weights.remove(f"{module}.{part}") for part in found}
        weights.add(f"{module}.weight", file, _reader(module, group, device, dequantize))


def drop_tensors(weights: CheckpointWeights, *suffixes: str) -> None:
    """Remove tensors that are not used, such as scales of static activation quantization."""
    for name in weights.names():
        if name.endswith(suffixes):
            weights.remove(name)


def _reader(
    module: str,
    group: Mapping[str, Callable[[], Tensor]],
    device: torch.device,
    dequantize: Callable[[str, Tensors], Tensor],
) -> Callable[[], Tensor]:
    return lambda: dequantize(module, {part: read().to(device) for part, read in group.items()})


def unpack_integers(packed: Tensor, bits: int, dim: int) -> Tensor:
    """Return the unsigned values of int32 words along `dim`, the lowest bits first."""
    shifts = torch.arange(0, 32, bits, device=packed.device, dtype=torch.int32)
    dim = dim % packed.dim()
    shape = [1] * (packed.dim() + 1)
    shape[dim + 1] = len(shifts)
    values = (packed.unsqueeze(dim + 1) >> shifts.view(shape)) & ((1 << bits) - 1)
    return values.flatten(dim, dim + 1)


def check_bits(module: str, bits: object, supported: Sequence[int]) -> int:
    if not isinstance(bits, int) or bits not in supported:
        raise LoadError(f"{module}: weights of {bits!r} bits are not supported; supported are: {list(supported)}")
    return bits


def check_shape(module: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise LoadError(
            f"{module}.{name} has shape {list(tensor.shape)}, the other tensors of this layer require {list(shape)}; "
            "download the model again"
        )
