"""Load the weights of Sentence Transformers modules: Dense and LayerNorm, each in its own folder."""

from __future__ import annotations

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.sentence_transformers import DenseModule, LayerNormModule
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.utils.arrays import Array


def load_dense(checkpoint: Checkpoint, dense: DenseModule) -> tuple[Array, Array | None]:
    """Return weight [out, in] and bias [out] in their stored dtype."""
    weights = open_weights(checkpoint, dense.folder)
    weight = _read_array(weights, "weight", (dense.out_features, dense.in_features))
    if dense.bias:
        return weight, _read_array(weights, "bias", (dense.out_features,))
    if any(name.endswith("bias") for name in weights.names()):
        raise LoadError(f"{weights.source} has a bias, but {dense.folder}/config.json has bias: false")
    return weight, None


def load_residual(checkpoint: Checkpoint, dense: DenseModule) -> Array | None:
    """Return the residual projection [out, in]; None if there is none or sizes are equal."""
    if not dense.has_residual or dense.in_features == dense.out_features:
        return None
    return _read_array(
        open_weights(checkpoint, dense.folder), "residual.weight", (dense.out_features, dense.in_features)
    )


def load_layer_norm(checkpoint: Checkpoint, norm: LayerNormModule) -> tuple[Array, Array]:
    weights = open_weights(checkpoint, norm.folder)
    return _read_array(weights, "weight", (norm.size,)), _read_array(weights, "bias", (norm.size,))


def _read_array(weights: CheckpointWeights, leaf: str, shape: tuple[int, ...]) -> Array:
    for name in (leaf, f"linear.{leaf}", f"dense.{leaf}", f"norm.{leaf}"):
        if name in weights:
            array = weights.get(name)
            if array.shape != shape:
                found = list(array.shape)
                raise LoadError(f"{weights.source}: {name} has shape {found}, its config.json requires {list(shape)}")
            return array
    has = ", ".join(weights.names()[:5]) or "nothing"
    raise LoadError(f"{weights.source}: no {leaf}, linear.{leaf} or dense.{leaf}; found {has}")
