"""The maximum length of an input: the third stage of loading."""

from __future__ import annotations

import logging
import os

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.family import Family
from cenote.loading.plugin_models import SINGLE_TOKEN_LENGTH
from cenote.loading.tokenizer_files import read_tokenizer_max_length
from cenote.models.architecture import HFConfig
from cenote.models.registry import PRESCALED_ROPE

logger = logging.getLogger("cenote")

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
ALLOW_LONG_VARIABLES = ("CENOTE_ALLOW_LONG_MAX_MODEL_LEN", "VLLM_ALLOW_LONG_MAX_MODEL_LEN")


def resolve_length(options: EngineConfig, family: Family) -> Sourced[int]:
    """Return the maximum number of tokens of an input, including special tokens, and what decides it."""
    layout, architecture = family.layout, family.architecture
    if not architecture.reads_texts:
        return Sourced(architecture.backbone.num_learned_positions, "the number of patches")
    return resolve_max_length(
        layout.config,
        layout.checkpoint,
        encoder_max_length=_find_encoder_length(family),
        requested=options.max_model_len,
        position_offset=architecture.backbone.position_offset,
        num_learned_positions=architecture.backbone.num_learned_positions,
        has_prescaled_rope=layout.config.get("model_type") in PRESCALED_ROPE,
    )


def _find_encoder_length(family: Family) -> Sourced[int] | None:
    """Return the length that files or family have in the place of config.json's."""
    if family.kind.value == "tensors":
        return SINGLE_TOKEN_LENGTH
    length = family.layout.files.max_length
    if length is None and family.architecture.max_length is not None:
        return Sourced(family.architecture.max_length, f"default of {family.entry.name}")
    # PyLate saves the length of the last inputs here, not a limit
    return length if family.late_interaction is None or family.late_interaction.settings is None else None


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
