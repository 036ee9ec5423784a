"""The tensors that store one quantized weight, replaced by one reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cenote.errors import LoadError
from cenote.loading.weights import CheckpointWeights
from cenote.utils.arrays import Array

Tensors = Mapping[str, Array]  # by their names without that of the module


def replace_groups(
    weights: CheckpointWeights,
    *,
    marker: str,
    parts: Sequence[str],
    optional: Sequence[str] = (),
    dequantize: Callable[[str, Tensors], Array],
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
        weights.add(f"{module}.weight", file, _reader(module, group, dequantize))


def drop_tensors(weights: CheckpointWeights, *suffixes: str) -> None:
    """Remove tensors that are not used, such as scales of static activation quantization."""
    for name in weights.names():
        if name.endswith(suffixes):
            weights.remove(name)


def _reader(
    module: str,
    group: Mapping[str, Callable[[], Array]],
    dequantize: Callable[[str, Tensors], Array],
) -> Callable[[], Array]:
    return lambda: dequantize(module, {part: read() for part, read in group.items()})


def unpack_integers(packed: Array, bits: int, dim: int, order: Sequence[int] | None = None) -> Array:
    """Return the unsigned values of 32-bit words along `dim` as bytes: the lowest bits first, or in that order."""
    if packed.dtype.kind not in "iu":
        raise TypeError(f"stored as {packed.dtype}; expected int32")
    words, mask = packed.astype(np.int32, copy=False).view(np.uint32), (1 << bits) - 1
    positions = range(32 // bits) if order is None else order
    values = np.stack([(words >> bits * position & mask).astype(np.uint8) for position in positions], axis=dim + 1)
    shape = [*packed.shape]
    shape[dim] *= len(positions)
    return values.reshape(shape)


def check_bits(module: str, bits: object, supported: Sequence[int]) -> int:
    if not isinstance(bits, int) or bits not in supported:
        raise LoadError(f"{module}: weights of {bits!r} bits are not supported; supported are: {list(supported)}")
    return bits


def check_shape(module: str, name: str, tensor: Array, shape: tuple[int, ...]) -> None:
    if tensor.shape != shape:
        raise LoadError(
            f"{module}.{name} has shape {list(tensor.shape)}, the other tensors of this layer require {list(shape)}; "
            "download the model again"
        )
