"""Read the files of a PEFT adapter: its config, LoRA matrices and tensors that replace whole layers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from cenote.errors import LoadError
from cenote.loading.checkpoint import ADAPTER_WEIGHTS, Checkpoint
from cenote.loading.layer_patterns import match_layers
from cenote.loading.weights import CheckpointWeights, open_weights_file
from cenote.utils.arrays import Array
from cenote.utils.text import short_repr

PEFT_PREFIX = "base_model.model."
DEFAULT_ALPHA = 8  # lora_alpha of PEFT, whatever the rank
# in the names of full layers; older versions, and state dicts saved without PEFT, add the name of the adapter
SAVED_MODULE = re.compile(r"\.modules_to_save(\.default)?(?=\.)")
REPLACED_MODULE = ".original_module."  # of the base model, beside the layer that replaces it
LORA_TENSOR_NAME = re.compile(
    r"(?P<module>.+)\.lora_(?P<embedding>embedding_)?(?P<half>[AB])(?:\.weight|\.default\.weight|)$"
)


def open_adapter_weights(checkpoint: Checkpoint) -> CheckpointWeights:
    for file in ADAPTER_WEIGHTS:
        if (path := checkpoint.find_own_file(file)) is not None:
            return open_weights_file(path)
    raise LoadError(f"{checkpoint.folder} has no adapter weights: expected {' or '.join(ADAPTER_WEIGHTS)}")


def read_lora_pairs(weights: CheckpointWeights) -> dict[str, tuple[Array, Array]]:
    """Return lora_A [rank, inputs] and lora_B [outputs, rank] by module name."""
    found: dict[str, dict[str, Array]] = {}
    for name in weights.names():
        if (match := _match_lora(name)) is not None:
            found.setdefault(match["module"], {})[match["half"]] = weights.get(name)
    for module, halves in found.items():
        if set(halves) != {"A", "B"}:
            raise LoadError(f"{weights.source}: {module} has only lora_{next(iter(halves))}; download it again")
        if any(half.ndim != 2 or 0 in half.shape for half in halves.values()):
            shapes = {half: list(tensor.shape) for half, tensor in halves.items()}
            raise LoadError(f"{weights.source}: {module} has LoRA matrices of shapes {shapes}; download it again")
    return {module: (halves["A"], halves["B"]) for module, halves in found.items()}


def read_full_tensors(weights: CheckpointWeights) -> dict[str, str]:
    """Return the tensors that are not LoRA matrices: name in the base model -> name in the adapter file."""
    others = (name for name in weights.names() if _match_lora(name) is None and REPLACED_MODULE not in name)
    return {SAVED_MODULE.sub("", name.removeprefix(PEFT_PREFIX)): name for name in others}


def check_lora_config(config: Mapping[str, Any], source: str) -> None:
    if "peft_type" not in config and "model_class" in config:
        raise LoadError(
            f"{source}: this is an adapter of the library Adapters (adapter-transformers) for "
            f"{config.get('model_name')}, which is not supported; expected a LoRA adapter of PEFT. "
            f"{config.get('model_name')} loads without it, and embeds less well for the task of the adapter"
        )
    kind = config.get("peft_type", "LORA")
    if kind != "LORA" or config.get("use_dora"):
        raise LoadError(f"{source}: adapters of type {'DoRA' if config.get('use_dora') else kind} are not supported")
    if config.get("bias", "none") != "none":
        raise LoadError(f"{source}: bias={config['bias']!r} is not supported; expected 'none'")


def compute_scalings(
    config: Mapping[str, Any], pairs: Mapping[str, tuple[Array, Array]], source: str
) -> dict[str, float]:
    """Return the factor of each module's update, from its alpha and rank."""
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise LoadError(
            f"{source}: alpha_pattern={short_repr(patterns)} is invalid; expected an object of patterns and numbers"
        )
    default = _read_alpha(config.get("lora_alpha", DEFAULT_ALPHA), source)
    alphas = [_read_alpha(alpha, source) for alpha in patterns.values()]
    rows = match_layers(list(patterns), list(pairs), f"{source}: alpha_pattern")
    scalings = {}
    for (module, (down, _)), row in zip(pairs.items(), rows, strict=True):
        divisor = math.sqrt(len(down)) if config.get("use_rslora") else len(down)
        scalings[module] = (default if row is None else alphas[row]) / divisor
    return scalings


def _read_alpha(value: Any, source: str) -> float:
    try:
        alpha = float(value)
    except (TypeError, ValueError, OverflowError):
        alpha = math.nan
    if not math.isfinite(alpha):
        raise LoadError(f"{source}: alpha {short_repr(value)} is invalid; expected a number")
    return alpha


def _match_lora(name: str) -> re.Match[str] | None:
    return LORA_TENSOR_NAME.fullmatch(name.removeprefix(PEFT_PREFIX))
