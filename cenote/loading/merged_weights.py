"""The weights of a checkpoint; those of an adapter are merged into its base model, in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cenote.errors import LoadError
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint
from cenote.loading.peft_files import compute_scalings, open_adapter_weights, read_full_tensors, read_lora_pairs
from cenote.loading.quantized.methods import add_dequantized_weights, read_quantization_config
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.utils.array_conversion import to_float32
from cenote.utils.arrays import Array

# parts of a name that differ between versions of Transformers for one and the same layer
POOLER = "pooler.dense"  # often left out of a checkpoint; adapters with target_modules="all-linear" change it
WRAPPER_NAMES = {"base_model", "language_model", "model", "vlm"}


@dataclass(frozen=True, slots=True)
class TaskAdapter:
    """One of the adapters in a file: its matrices have the task in their names, as lora_A.TASK.weight."""

    folder: str
    task: str


def open_model_weights(checkpoint: Checkpoint, task_adapter: TaskAdapter | None = None) -> CheckpointWeights:
    """Open the weights of a model, with the adapter merged if the checkpoint is one, or if a task's is given."""
    if task_adapter is not None:
        folder = Checkpoint(checkpoint.name, checkpoint.folder / task_adapter.folder)
        adapter = _select_task(open_adapter_weights(folder), task_adapter.task)
        return _merge(_open_dequantized(checkpoint), adapter, folder.require_json(ADAPTER_CONFIG), checkpoint.name)
    if checkpoint.base is None:
        return _open_dequantized(checkpoint)
    base, config = checkpoint.base, checkpoint.read_json_object(ADAPTER_CONFIG)
    return _merge(open_model_weights(base), open_adapter_weights(checkpoint), config, base.name)


def _open_dequantized(checkpoint: Checkpoint) -> CheckpointWeights:
    weights = open_weights(checkpoint)
    if (config := read_quantization_config(checkpoint)) is not None:
        add_dequantized_weights(weights, config)
    return weights


def _merge(
    base: CheckpointWeights, adapter: CheckpointWeights, config: Mapping[str, Any], base_name: str
) -> CheckpointWeights:
    source, stored_names = adapter.source, _index_names(base.names())
    merged = CheckpointWeights(source)
    for name in base.names():
        merged.add(name, base.file_of(name), _reader(base, name))
    pairs = read_lora_pairs(adapter)
    scalings = compute_scalings(config, pairs, str(source.with_name(ADAPTER_CONFIG)))
    for module, (down, up) in pairs.items():
        target = _find_name(f"{module}.weight", stored_names)
        if target is None and module.endswith(POOLER):
            continue  # a head that needs it reports what is missing
        if target is None:
            raise LoadError(
                f"{source}: the base model {base_name} has no {module}.weight, which the adapter changes; "
                f'pass the folder of its base model with hf_overrides={{"base_model_name_or_path": "FOLDER"}}'
            )
        up = to_float32(up) * np.float32(scalings[module])
        is_transposed = bool(config.get("fan_in_fan_out"))
        merged.add(target, source, _merging_reader(base, target, down, up, is_transposed, source))
    for name, stored in read_full_tensors(adapter).items():
        merged.add(_find_name(name, stored_names) or name, source, _reader(adapter, stored))
    return merged


def _select_task(weights: CheckpointWeights, task: str) -> CheckpointWeights:
    selected = CheckpointWeights(weights.source)
    for name in weights.names():
        if name.endswith(f".{task}.weight"):
            selected.add(name.removesuffix(f".{task}.weight") + ".weight", weights.source, _reader(weights, name))
    if not selected.names():
        raise LoadError(f"{weights.source} has no tensors of the task {task}; download it again")
    return selected


def _reader(weights: CheckpointWeights, name: str) -> Callable[[], Array]:
    return lambda: weights.get(name)


def _merging_reader(
    base: CheckpointWeights, name: str, down: Array, up: Array, is_transposed: bool, source: Path
) -> Callable[[], Array]:
    """Return a reader of weight + up @ down; `is_transposed`: layers are stored as [in, out]."""

    def read() -> Array:
        weight, update = to_float32(base.get(name)), up @ to_float32(down)
        if is_transposed or update.shape != weight.shape:  # the shapes of embedding tables differ
            update = update.T
        if update.shape != weight.shape:
            raise LoadError(
                f"{source}: the update of {name} has shape {list(update.T.shape)}, the base model {list(weight.shape)}"
            )
        merged: Array = weight + update
        return merged

    return read


def _index_names(names: Iterable[str]) -> dict[str, str | None]:
    """Return stored names by themselves, and by their name without wrappers (None where that is ambiguous)."""
    index: dict[str, str | None] = {}
    for name in names:
        short = _without_wrappers(name)
        index[short] = None if short in index else name
    return index | {name: name for name in names}


def _find_name(name: str, stored_names: Mapping[str, str | None]) -> str | None:
    return stored_names.get(name) or stored_names.get(_without_wrappers(name))


def _without_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)
