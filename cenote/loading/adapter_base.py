"""Repositories that hold only a PEFT adapter: find the base model, and what the adapter changes in its config."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cenote.config.engine import HubAccess
from cenote.errors import LoadError
from cenote.loading.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Checkpoint, find_checkpoint
from cenote.loading.peft_files import check_lora_config, open_adapter_weights, read_full_tensors
from cenote.loading.weights import has_weights
from cenote.models.registry import KIND_SUFFIXES, UnknownArchitecture, find_architecture

logger = logging.getLogger("cenote")

BASE_KEY = "base_model_name_or_path"
# task of PEFT -> suffix of the architecture that the adapter was trained in
SUFFIX_BY_TASK = {"SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification"}
CLASSIFIER_WEIGHTS = ("score.weight", "classifier.weight", "classifier.out_proj.weight")


def with_base_model(
    checkpoint: Checkpoint, overrides: Any, hub: HubAccess, *, needs_weights: bool = True
) -> Checkpoint:
    """Return the checkpoint of an adapter with its base model; another checkpoint unchanged."""
    if checkpoint.find_file(ADAPTER_CONFIG) is None:
        return checkpoint
    source = checkpoint.folder / ADAPTER_CONFIG
    if has_weights(checkpoint):
        return checkpoint
    config = checkpoint.read_json_object(ADAPTER_CONFIG)
    check_lora_config(config, str(source))
    override = overrides.get(BASE_KEY) if isinstance(overrides, Mapping) else None
    name = override or config.get(BASE_KEY)
    if not isinstance(name, str) or not name:
        raise LoadError(f"{source} has no {BASE_KEY}; {_way_out('the base model')}")
    revision = None if override else config.get("revision")
    return replace(checkpoint, base=_find_base(checkpoint, name, revision, hub, needs_weights=needs_weights))


def find_adapter_doubts(checkpoint: Checkpoint) -> list[str]:
    """Return a doubt about an adapter that lies beside the weights of a model, and is therefore not applied."""
    if checkpoint.base is not None or checkpoint.find_file(ADAPTER_CONFIG) is None:
        return []
    return [
        f"{checkpoint.folder / ADAPTER_CONFIG}: the adapter is not applied, since the folder has the weights of a "
        "model; if these are of the base model, move the adapter to its own folder and load that"
    ]


def read_adapter_config(checkpoint: Checkpoint, values: Mapping[str, Any], overrides: Any = None) -> dict[str, Any]:
    """Return the base model's config as the adapter changes it: the class it was trained in, the number of labels.

    Raise LoadError for a class that is unknown, unless `overrides` name another one.
    """
    if checkpoint.base is None:
        return dict(values)
    adapter = checkpoint.read_json_object(ADAPTER_CONFIG)
    name = _read_class(checkpoint, adapter, overrides) or _class_of_task(adapter, values.get("architectures"))
    if name is None:
        return dict(values)
    changes: dict[str, Any] = {"architectures": [name]}
    if not any(checkpoint.find_own_file(file) is not None for file in ADAPTER_WEIGHTS):
        return {**values, **changes}  # only configuration files are read
    weights = open_adapter_weights(checkpoint)
    for tensor, stored in read_full_tensors(weights).items():
        if tensor.endswith(CLASSIFIER_WEIGHTS) and "num_labels" not in values and "id2label" not in values:
            changes["num_labels"] = weights.get(stored).shape[0]
    return {**values, **changes}


def _read_class(checkpoint: Checkpoint, adapter: Mapping[str, Any], overrides: Any) -> str | None:
    """Return the class that the adapter was trained in, which PEFT saves in auto_mapping if it has no task_type."""
    mapping = adapter.get("auto_mapping")
    name = mapping.get("base_model_class") if isinstance(mapping, Mapping) else None
    if name is None or (isinstance(overrides, Mapping) and "architectures" in overrides):
        return None
    try:
        find_architecture([str(name)])
    except UnknownArchitecture:
        raise LoadError(
            f"{checkpoint.folder / ADAPTER_CONFIG}: auto_mapping says that the adapter was trained in {name}, which is "
            "not supported; use a model whose class is, or name the class that it corresponds to with "
            'hf_overrides={"architectures": ["..."]}'
        ) from None
    return str(name)


def _class_of_task(adapter: Mapping[str, Any], names: Any) -> str | None:
    """Return the class of the adapter's task in the family of its base model; None if that does not change it."""
    suffix = SUFFIX_BY_TASK.get(str(adapter.get("task_type")))
    if suffix is None or not isinstance(names, list) or not names or str(names[0]).endswith(suffix):
        return None
    name = str(names[0])
    return next((name.removesuffix(known) for known, _ in KIND_SUFFIXES if name.endswith(known)), name) + suffix


def _find_base(checkpoint: Checkpoint, name: str, revision: Any, hub: HubAccess, *, needs_weights: bool) -> Checkpoint:
    try:
        commit = revision if isinstance(revision, str) else None
        base = find_checkpoint(
            find_model_folder(checkpoint, name), revision=commit, hub=hub, needs_weights=needs_weights
        )
    except LoadError as error:
        raise LoadError(
            f"{checkpoint.folder / ADAPTER_CONFIG}: this is an adapter for {name!r}, which was not found "
            f"({error.message}); {_way_out(name)}"
        ) from error
    logger.info("%s is an adapter, merged into the weights of %s", checkpoint.name, base.folder)
    return with_base_model(base, None, hub, needs_weights=needs_weights)


def find_model_folder(checkpoint: Checkpoint, name: str) -> str:
    """Return a folder of that name, here or beside the checkpoint; else the name, to be found on the hub."""
    beside = checkpoint.folder.resolve().parent
    folders = (Path(name).expanduser(), beside / Path(name).name, beside.parent / name)
    return next((str(folder) for folder in folders if folder.is_dir()), name)


def _way_out(name: str) -> str:
    return f'pass the folder of {name} with hf_overrides={{"{BASE_KEY}": "FOLDER"}}'
