"""config.json with the user's changes, and what follows from it: the length a model reads and its number types."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeAlias

import torch

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.models.architecture import HFConfig

logger = logging.getLogger("cenote")

ConfigOverrides: TypeAlias = "Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None"

# the smallest of these is the length a model was made for
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
# where models of several halves keep the config of the one that reads text, and what is never that half's to say
TEXT_CONFIG_KEYS = ("text_config", "llm_config", "language_config", "vlm_config")
TOP_LEVEL_KEYS = ("architectures", "model_type", "auto_map", "id2label", "label2id", "num_labels", "_name_or_path")
# the lengths of text halves whose config leaves out what every such model has
DEFAULT_LENGTHS = {"gemma": 8192, "gemma2": 8192, "modernbert": 8192}
UNLIMITED_LENGTH = 10**9  # tokenizers without a limit of their own say 1e30
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


def read_config(checkpoint: Checkpoint, overrides: ConfigOverrides = None) -> HFConfig:
    """config.json after hf_overrides: a mapping is merged into it, a function maps it to another."""
    source = str(checkpoint.folder / "config.json")
    checkpoint.require_file("config.json")
    values = checkpoint.read_json_object("config.json")
    if overrides is None:
        return HFConfig(_merge_text_config(values), source)
    if isinstance(overrides, Mapping):
        return HFConfig(_merge_rope_overrides(_merge_text_config(_deep_merge(values, overrides)), overrides), source)
    if not callable(overrides):
        raise LoadError(f"hf_overrides is a mapping or a function of the config, not {type(overrides).__name__}")
    try:
        changed = overrides(_AttributeDict(deepcopy(values)))
    except Exception as error:
        raise LoadError(f"hf_overrides failed on {source}: {type(error).__name__}: {error}") from error
    if not isinstance(changed, Mapping):
        raise LoadError(f"hf_overrides gave {type(changed).__name__} for {source}; it must return the changed dict")
    return HFConfig(_merge_text_config(changed), source)


def _merge_text_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a model of several halves says of the one that reads text, as if that were all; its own words come first."""
    halves = (values.get(name) for name in TEXT_CONFIG_KEYS)
    half = next((half for half in halves if isinstance(half, Mapping)), {})
    inside = _merge_text_config(half) if half else {}  # a whole model of both halves may stand there
    if (length := DEFAULT_LENGTHS.get(inside.get("model_type", ""))) is not None:
        inside = {"max_position_embeddings": length, **inside}
    return {**{name: value for name, value in inside.items() if name not in TOP_LEVEL_KEYS}, **values}


def read_architectures(config: HFConfig) -> list[str]:
    """The architecture names of the checkpoint, most telling first."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LoadError(f"{config.source}: architectures is {names!r}, not a list of names")
    return names


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
    """How many tokens the model reads, special ones included, and which file or option says so.

    `stretched`: the length in config.json is what its rotary scaling leads to, not where it starts.
    """
    if requested is not None and requested < 1 and requested != -1:
        raise LoadError(f"max_model_len={requested} is no length; give 1 or more, or -1 for the model's own")
    wanted = None if requested == -1 else requested
    table = num_learned_positions - position_offset if num_learned_positions else None

    key, derived = _derive_max_length(config, has_prescaled_rope=has_prescaled_rope)
    if encoder_max_length is not None:
        length = encoder_max_length
    elif key is not None:
        length = Sourced(derived, f"config.json {key}")
    elif table is not None:
        length = Sourced(table, "the rows of the position table")
    elif wanted is not None:
        return Sourced(wanted, "max_model_len")
    else:
        logger.warning("%s names no length; reading %d tokens at most", config.source, DEFAULT_MAX_LENGTH)
        length = Sourced(DEFAULT_MAX_LENGTH, "no file: a guess")
    if num_learned_positions:
        length = _lower_limit(length, read_tokenizer_max_length(checkpoint), "tokenizer_config.json")
        length = _lower_limit(length, table, "the rows of the position table")

    if wanted is None or wanted <= length.value:
        return _lower_limit(length, wanted, "max_model_len")
    named = key if key is not None and length.value == derived else length.source
    return Sourced(_check_longer_limit(config, wanted, named, length.value, table), "max_model_len")


def read_tokenizer_max_length(checkpoint: Checkpoint) -> int | None:
    """The length tokenizer_config.json gives, if it means one."""
    length = checkpoint.read_json_object("tokenizer_config.json").get("model_max_length")
    return int(length) if isinstance(length, int | float) and 0 < length < UNLIMITED_LENGTH else None


def resolve_dtype(
    config: HFConfig, requested: str, device_type: str, *, native_bf16: bool, supports_float16: bool = True
) -> Sourced[torch.dtype]:
    """The type the backbone computes in; `float16` says whether that one can hold its activations."""
    if requested != "auto":
        if requested not in SUPPORTED_DTYPES:
            raise LoadError(f"dtype={requested!r} is unknown; there are: auto, {', '.join(SUPPORTED_DTYPES)}")
        computed = _check_cpu_dtype(Sourced(DTYPES[requested], "dtype"), "dtype", device_type, native_bf16=native_bf16)
        if computed.value is torch.float16 and not supports_float16:
            raise LoadError(f"dtype={requested!r} overflows in {config.model_type}; use bfloat16 or float32")
        return computed
    if device_type == "cpu":
        if native_bf16:
            return Sourced(torch.bfloat16, "the CPU, which has matrix units for it")
        return Sourced(torch.float32, "the CPU, which has no bfloat16 units")
    stored = _read_stored_dtype(config)
    if stored is torch.bfloat16:
        return Sourced(stored, "config.json")
    if not supports_float16:
        return Sourced(torch.bfloat16, f"model type {config.model_type}, which overflows in float16")
    name = str(stored).removeprefix("torch.")
    return Sourced(torch.float16, "config.json" if stored is torch.float16 else f"config.json {name}, run in half")


def resolve_head_dtype(
    config: HFConfig, model_dtype: torch.dtype, device_type: str, *, native_bf16: bool
) -> Sourced[torch.dtype]:
    """The type of everything after the backbone."""
    asked = config.get("head_dtype")
    if asked is None:
        return Sourced(torch.float32, "default")
    if asked == "model":
        return Sourced(model_dtype, "head_dtype in the config")
    if asked not in SUPPORTED_DTYPES:
        raise LoadError(f"head_dtype={asked!r} is unknown; there are: model, {', '.join(SUPPORTED_DTYPES)}")
    decision = Sourced(DTYPES[asked], "head_dtype in the config")
    return _check_cpu_dtype(decision, "head_dtype", device_type, native_bf16=native_bf16)


def _check_cpu_dtype(
    requested: Sourced[torch.dtype], option: str, device_type: str, *, native_bf16: bool
) -> Sourced[torch.dtype]:
    """The type asked for, or float32 on a CPU without units for it, where torch would be hundreds of times slower.

    Weights are float32 then as well: widening them for every product makes it up to 1.5 times as slow from bfloat16,
    and up to 4 times from float16. No CPU gets float16: there are no kernels for it that are faster than float32.
    """
    has_units = requested.value is torch.float32 or (requested.value is torch.bfloat16 and native_bf16)
    if device_type != "cpu" or has_units:
        return requested
    name = str(requested.value).removeprefix("torch.")
    faster = "; bfloat16 is faster on this CPU" if native_bf16 else ""
    logger.warning("%s=%s: no fast %s arithmetic on this CPU; computing in float32%s", option, name, name, faster)
    return Sourced(torch.float32, f"{option}={name}, which this CPU computes in float32")


class _AttributeDict(dict[str, Any]):
    """A dict whose keys are attributes too, as functions written for Transformers' configs expect."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


def _merge_rope_overrides(values: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Newer files keep rotary settings in `rope_parameters`; overrides in the older words change them there."""
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
    """The length config.json speaks of and the key that says it, stretched as its rotary scaling says."""
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
        # where GTE writes "ntk", the length beside it is the one that is reached
        if kind in ("yarn", "linear", "dynamic") and not has_prescaled_rope:
            return key, int((original if kind == "yarn" and original else lengths[key]) * factor)
    except (AttributeError, TypeError, ValueError):
        raise LoadError(f"{config.source}: the rope scaling {scaling!r} cannot be read; factor is a number") from None
    return key, lengths[key]


def _read_token_count(config: HFConfig, key: str) -> int:
    value = config.values[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise LoadError(f"{config.source}: {key} is {value!r}, not a number of tokens")
    return int(value)


def _lower_limit(length: Sourced[int], limit: int | None, source: str) -> Sourced[int]:
    if limit is None or limit >= length.value:
        return length
    return Sourced(limit, f"{length.source}, lowered by {source}")


def _check_longer_limit(config: HFConfig, requested: int, key: str, derived: int, table: int | None) -> int:
    """A length past what the model was made for, if the user insists and the position table reaches there."""
    own_limit = config.get("model_max_length")
    excess = (
        f"User-specified max_model_len ({requested}) is greater than the derived max_model_len ({key}={derived} "
        f"or model_max_length={own_limit} in model's config.json)."
    )
    if table is not None and requested > table:
        raise LoadError(f"{excess} The position table has {table} usable rows, so no setting allows more than {table}.")
    if not any(os.environ.get(name, "").strip().lower() in ("1", "true") for name in ALLOW_LONG_VARIABLES):
        raise LoadError(
            f"{excess} To allow overriding this maximum, set the env var {ALLOW_LONG_VARIABLES[1]}=1 (or "
            f"{ALLOW_LONG_VARIABLES[0]}=1); "
            "what a model says about positions it never saw is worth little."
        )
    logger.warning("%s Allowed by the environment; expect worse answers for long inputs.", excess)
    return requested


def _read_stored_dtype(config: HFConfig) -> torch.dtype:
    name = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        known = ", ".join(SUPPORTED_DTYPES)
        raise LoadError(f"{config.source}: dtype {name!r} cannot be computed in; give dtype, one of: {known}")
    return DTYPES[name]
