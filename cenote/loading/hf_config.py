"""Read config.json with overrides, and derive the maximum length and dtypes from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import torch

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec
from cenote.loading.adapter_base import read_adapter_config
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.encoder_args import CONFIG_ARGS, find_encoder_file, read_encoder_args
from cenote.loading.tokenizer_files import read_tokenizer_max_length
from cenote.models.architecture import HFConfig

logger = logging.getLogger("cenote")

ConfigOverrides: TypeAlias = "Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None"

# the smallest of these values is the maximum length
LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "model_max_length",
)
DEFAULT_MAX_LENGTH = 2048
# keys of the text config of multimodal models, and keys that are never taken from it
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "vlm_config")
TOP_LEVEL_KEYS = ("architectures", "model_type", "auto_map", "id2label", "label2id", "num_labels", "_name_or_path")
# default max_position_embeddings of text configs that leave it out
DEFAULT_LENGTHS = {"gemma": 8192, "gemma2": 8192, "modernbert": 8192}
ALLOW_LONG_VARIABLES = ("CENOTE_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")

DTYPES = {
    "float32": torch.float32,
    "float": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "half": torch.float16,
    "float64": torch.float64,
    "double": torch.float64,
}
SUPPORTED_DTYPES = ("float32", "float", "bfloat16", "float16", "half")


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


def image_length(spec: BackboneSpec) -> Sourced[int]:
    """Return the length of a model that reads only images, all of one size."""
    return Sourced(spec.num_learned_positions, "the number of patches")


def resolve_max_length(
    config: HFConfig,
    checkpoint: Checkpoint,
    *,
    encoder_max_length: Sourced[int] | None,
    requested: int | None,
    position_offset: int,
    num_learned_positions: int,
    has_prescaled_rope: bool = False,
) -> Sourced[int]:
    """Return the maximum number of tokens, including special tokens, and the file or option it comes from.

    `has_prescaled_rope`: the length in config.json already includes the rope scaling.
    """
    if requested is not None and requested < 1 and requested != -1:
        raise LoadError(f"invalid max_model_len={requested}; expected 1 or more, or -1 for the model's own limit")
    limit_option = None if requested == -1 else requested
    table = num_learned_positions - position_offset if num_learned_positions else None

    key, derived = _derive_max_length(config, has_prescaled_rope=has_prescaled_rope)
    if encoder_max_length is not None:
        length = encoder_max_length
    elif key is not None:
        length = Sourced(derived, f"config.json {key}")
    elif table is not None:
        length = Sourced(table, "the number of learned positions")
    elif limit_option is not None:
        return Sourced(limit_option, "max_model_len")
    else:
        logger.warning(
            "%s has no maximum length; using %d tokens (max_model_len sets another)", config.source, DEFAULT_MAX_LENGTH
        )
        length = Sourced(DEFAULT_MAX_LENGTH, "default")
    if num_learned_positions:
        if encoder_max_length is None:  # Sentence Transformers sets the tokenizer's limit to that of its own file
            length = _lower_limit(length, read_tokenizer_max_length(checkpoint), "tokenizer_config.json")
        length = _lower_limit(length, table, "the number of learned positions")

    if limit_option is None or limit_option <= length.value:
        return _lower_limit(length, limit_option, "max_model_len")
    named = key if key is not None and length.value == derived else length.source
    return Sourced(_check_longer_limit(config, limit_option, named, length.value, table), "max_model_len")


def resolve_dtype(
    config: HFConfig,
    requested: str,
    device_type: str,
    *,
    native_bf16: bool,
    supports_float16: bool = True,
    multiplies_float16: bool = False,
) -> Sourced[torch.dtype]:
    """Return the dtype of the backbone; `supports_float16` is False if its activations overflow float16.

    `multiplies_float16`: the linear layers on this CPU multiply in float16, with inputs and results in float32.
    """
    if requested != "auto":
        if requested not in SUPPORTED_DTYPES:
            raise LoadError(f"invalid dtype={requested!r}; expected one of: auto, {', '.join(SUPPORTED_DTYPES)}")
        if device_type == "cpu" and multiplies_float16 and DTYPES[requested] is torch.float16:
            return Sourced(torch.float32, f"dtype={requested}, in which linear layers multiply")
        computed = _check_cpu_dtype(Sourced(DTYPES[requested], "dtype"), "dtype", device_type, native_bf16=native_bf16)
        if computed.value is torch.float16 and not supports_float16:
            raise LoadError(f"dtype={requested!r} overflows in {config.model_type}; use bfloat16 or float32")
        return computed
    if device_type == "cpu":
        if native_bf16:
            return Sourced(torch.bfloat16, "CPU with bfloat16 matrix units")
        return Sourced(torch.float32, "CPU without bfloat16 units")
    stored = _read_stored_dtype(config)
    if stored is torch.bfloat16:
        return Sourced(stored, "config.json")
    if not supports_float16:
        return Sourced(torch.bfloat16, f"model type {config.model_type}, which overflows in float16")
    name = str(stored).removeprefix("torch.")
    return Sourced(torch.float16, "config.json" if stored is torch.float16 else f"config.json {name}, run in float16")


def resolve_head_dtype(
    config: HFConfig, model_dtype: torch.dtype, device_type: str, *, native_bf16: bool
) -> Sourced[torch.dtype]:
    """Return the dtype of pooling and heads."""
    requested = config.get("head_dtype")
    if requested is None:
        return Sourced(torch.float32, "default")
    if requested == "model":
        return Sourced(model_dtype, "head_dtype in the config")
    if requested not in SUPPORTED_DTYPES:
        raise LoadError(f"invalid head_dtype={requested!r}; expected one of: model, {', '.join(SUPPORTED_DTYPES)}")
    decision = Sourced(DTYPES[requested], "head_dtype in the config")
    return _check_cpu_dtype(decision, "head_dtype", device_type, native_bf16=native_bf16)


def _check_cpu_dtype(
    requested: Sourced[torch.dtype], option: str, device_type: str, *, native_bf16: bool
) -> Sourced[torch.dtype]:
    """Return the requested dtype, or float32 on a CPU without units for it, where torch is hundreds of times slower.

    Weights are float32 then as well: converting them for every product is up to 1.5 times slower from bfloat16 and up
    to 4 times slower from float16. On CPUs with fp16 instructions, float16 is the dtype of products of float32 models.
    """
    has_units = requested.value is torch.float32 or (requested.value is torch.bfloat16 and native_bf16)
    if device_type != "cpu" or has_units:
        return requested
    name = str(requested.value).removeprefix("torch.")
    faster = "; bfloat16 is faster on this CPU" if native_bf16 else ""
    logger.warning("%s=%s: this CPU has no fast %s arithmetic; using float32%s", option, name, name, faster)
    return Sourced(torch.float32, f"{option}={name}, run in float32 on this CPU")


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


def _derive_max_length(config: HFConfig, *, has_prescaled_rope: bool) -> tuple[str | None, int]:
    """Return the key and the maximum length of config.json, including rope scaling; (None, 0) if it has none."""
    lengths = {key: _read_token_count(config, key) for key in LENGTH_KEYS if key in config}
    if not lengths:
        return None, 0
    key = "model_max_length" if "model_max_length" in lengths else min(lengths, key=lambda name: lengths[name])
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    original = config.get("original_max_position_embeddings")
    try:
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        original, factor = scaling.get("original_max_position_embeddings") or original, scaling.get("factor", 1.0)
        if kind in ("longrope", "su"):
            return ("original_max_position_embeddings", int(original)) if original else (key, lengths[key])
        # for "ntk" (GTE), the length already includes the scaling
        if kind in ("yarn", "linear", "dynamic") and not has_prescaled_rope:
            return key, int((original if kind == "yarn" and original else lengths[key]) * factor)
    except (AttributeError, TypeError, ValueError):
        raise LoadError(f"{config.source}: invalid rope scaling {scaling!r}; factor must be a number") from None
    return key, lengths[key]


def _read_token_count(config: HFConfig, key: str) -> int:
    value = config.values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise LoadError(f"{config.source}: {key} is {value!r}; expected a number of tokens")
    return int(value)


def _lower_limit(length: Sourced[int], limit: int | None, source: str) -> Sourced[int]:
    if limit is None or limit >= length.value:
        return length
    return Sourced(limit, f"{length.source}, lowered by {source}")


def _check_longer_limit(config: HFConfig, requested: int, key: str, derived: int, table: int | None) -> int:
    """Return a limit above the model's, if the environment allows it and there are enough learned positions."""
    own_limit = config.get("model_max_length")
    excess = (
        f"User-specified max_model_len ({requested}) is greater than the derived max_model_len ({key}={derived} "
        f"or model_max_length={own_limit} in model's config.json)."
    )
    if table is not None and requested > table:
        raise LoadError(f"{excess} The model has {table} learned positions, so no setting allows more than {table}.")
    if not any(os.environ.get(name, "").strip().lower() in ("1", "true") for name in ALLOW_LONG_VARIABLES):
        raise LoadError(
            f"{excess} To allow overriding this maximum, set the env var {ALLOW_LONG_VARIABLES[1]}=1 (or "
            f"{ALLOW_LONG_VARIABLES[0]}=1); "
            "outputs for positions beyond the training length are unreliable."
        )
    logger.warning("%s Allowed by the environment; results for long inputs may be worse.", excess)
    return requested


def _read_stored_dtype(config: HFConfig) -> torch.dtype:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        known = ", ".join(SUPPORTED_DTYPES)
        raise LoadError(f"{config.source}: dtype {name!r} is not supported; set dtype to one of: {known}")
    return DTYPES[name]
