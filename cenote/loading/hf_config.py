"""Read config.json with overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

from cenote.errors import LoadError
from cenote.loading.adapter_base import read_adapter_config
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.encoder_args import CONFIG_ARGS, find_encoder_file, read_encoder_args
from cenote.models.architecture import HFConfig
from cenote.models.registry import DEFAULT_LENGTHS

ConfigOverrides: TypeAlias = "Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None"

# keys of the text config of multimodal models, and keys that are never taken from it
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "vlm_config")
TOP_LEVEL_KEYS = ("architectures", "model_type", "auto_map", "id2label", "label2id", "num_labels", "_name_or_path")


def read_config(
    checkpoint: Checkpoint,
    overrides: ConfigOverrides = None,
    values: Mapping[str, Any] | None = None,
    file: str = "config.json",
) -> HFConfig:
    """Return config.json with hf_overrides applied: a mapping is merged, a function returns the new config.

    `values` are those of a model whose config.json is derived from other files, and `file` the one to name.
    """
    source = str(checkpoint.encoder_path / file)
    if values is None:
        source = str(checkpoint.require_file("config.json"))
        args = read_encoder_args(checkpoint, find_encoder_file(checkpoint), CONFIG_ARGS)
        values = {**read_adapter_config(checkpoint, checkpoint.read_json_object("config.json"), overrides), **args}
    if overrides is None:
        return HFConfig(_merge_text_config(values), source)
    if isinstance(overrides, Mapping):
        return HFConfig(_merge_rope_overrides(_merge_text_config(_deep_merge(values, overrides)), overrides), source)
    if not callable(overrides):
        raise LoadError(f"hf_overrides must be a mapping or a function of the config, got {type(overrides).__name__}")
    try:
        changed = overrides(_AttributeDict(deepcopy(dict(values))))
    except Exception as error:
        raise LoadError(f"hf_overrides failed on {source}: {type(error).__name__}: {error}") from error
    if not isinstance(changed, Mapping):
        raise LoadError(f"hf_overrides returned {type(changed).__name__} for {source}; it must return a dict")
    return HFConfig(_merge_text_config(changed), source)


def _merge_text_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the nested text config of a multimodal model into the top level; top-level values take precedence."""
    configs = (values.get(name) for name in TEXT_CONFIG_KEYS)
    text_config = next((config for config in configs if isinstance(config, Mapping)), {})
    nested = _merge_text_config(text_config) if text_config else {}  # may itself be multimodal
    if (length := DEFAULT_LENGTHS.get(nested.get("model_type", ""))) is not None:
        nested = {"max_position_embeddings": length, **nested}
    return {**{name: value for name, value in nested.items() if name not in TOP_LEVEL_KEYS}, **values}


def read_architectures(config: HFConfig) -> list[str]:
    """Return `architectures` of config.json."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LoadError(f"{config.source}: architectures is {names!r}; expected a list of names")
    return names


class _AttributeDict(dict[str, Any]):
    """A dict with attribute access, for override functions written for Transformers configs."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _merge_rope_overrides(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Apply overrides of `rope_theta` and `rope_scaling` to `rope_parameters`, which newer configs use."""
    newer = values.get("rope_parameters")
    if not isinstance(newer, dict) or any(isinstance(part, dict) for part in newer.values()):
        return values
    older = {"rope_theta": overrides["rope_theta"]} if "rope_theta" in overrides else {}
    scaling = overrides.get("rope_scaling")
    return {**values, "rope_parameters": {**newer, **older, **(scaling if isinstance(scaling, Mapping) else {})}}


def _deep_merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for key, change in changes.items():
        old = merged.get(key)
        merged[key] = _deep_merge(old, change) if isinstance(old, Mapping) and isinstance(change, Mapping) else change
    return merged
