"""PoolerConfig: how hidden states are pooled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cenote.config.options import check_known_names, option
from cenote.errors import BadRequest
from cenote.protocol.params import (
    DEPRECATED_ACTIVATION_NAMES,
    TASKS,
    check_type,
    resolve_alias,
    resolve_deprecated_alias,
    validate_task_name,
)

POOLER_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "pooling_type", "seq_pooling_type", "tok_pooling_type"), (str,)),
    **dict.fromkeys(("use_activation", "normalize", "enable_chunked_processing", "include_prompt"), (bool,)),
    "enable_flash_late_interaction": (bool,),
    **dict.fromkeys(DEPRECATED_ACTIVATION_NAMES, (bool,)),
    **dict.fromkeys(("dimensions", "max_embed_len", "step_tag_id"), (int,)),
    **dict.fromkeys(("logit_mean", "logit_bias", "logit_sigma"), (float, int)),
    "returned_token_ids": (list, tuple),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerConfig:
    """Pooling options; unset ones follow the Sentence Transformers files, then the model's defaults."""

    task: str | None = option("serve only this task (default: all tasks of the model)", default=None, choices=TASKS)
    pooling_type: str | None = option("CLS, LAST or MEAN for sequences, ALL or STEP for tokens", default=None)
    seq_pooling_type: str | None = option("how token states are pooled into one vector per sequence", default=None)
    tok_pooling_type: str | None = option("which token states token-wise tasks return", default=None)
    use_activation: bool | None = option("normalize embeddings, apply sigmoid or softmax to logits", default=None)
    normalize: bool | None = option("deprecated alias of use_activation", default=None)
    dimensions: int | None = option("default size of Matryoshka embeddings", default=None)
    enable_chunked_processing: bool = option(
        "embed texts longer than max_model_len in chunks and average the chunks", default=False
    )
    max_embed_len: int | None = option("maximum length in tokens of an input to embed", default=None)
    logit_mean: float | None = option("value subtracted from logits", default=None)
    logit_bias: float | None = option("deprecated alias of logit_mean", default=None)
    logit_sigma: float | None = option("divisor of logits, applied after logit_mean", default=None)
    step_tag_id: int | None = option("STEP pooling returns the rows of this token id", default=None)
    returned_token_ids: list[int] | None = option("STEP pooling returns these columns", default=None)
    include_prompt: bool | None = option("pool the tokens of the prompt too", default=None)
    enable_flash_late_interaction: bool | None = option(
        "accepted for compatibility with vLLM and ignored", default=None
    )
    softmax: bool | None = option("deprecated alias of use_activation", default=None)
    activation: bool | None = option("deprecated alias of use_activation", default=None)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen
        for name, kinds in POOLER_FIELD_TYPES.items():
            check_type(name, getattr(self, name), kinds)
        set_field(self, "task", validate_task_name(self.task))
        set_field(
            self,
            "use_activation",
            resolve_alias("normalize", self.normalize, "use_activation", self.use_activation),
        )
        set_field(self, "normalize", None)
        for name in DEPRECATED_ACTIVATION_NAMES:
            value = resolve_deprecated_alias(name, getattr(self, name), "use_activation", self.use_activation)
            set_field(self, "use_activation", value)
            set_field(self, name, None)
        if self.logit_bias is not None and self.logit_mean not in (None, self.logit_bias):
            raise BadRequest(
                "`logit_bias` is a deprecated alias of `logit_mean`; both were given, with different values: "
                f"{self.logit_bias} and {self.logit_mean}"
            )
        set_field(self, "logit_mean", self.logit_mean if self.logit_mean is not None else self.logit_bias)
        set_field(self, "logit_bias", None)
        set_field(self, "enable_flash_late_interaction", None)  # What changes no result is no part of the fingerprint.
        if self.max_embed_len is not None and self.max_embed_len < 1:
            raise BadRequest(f"max_embed_len must be at least 1, got {self.max_embed_len}")
        if self.logit_sigma == 0:
            raise BadRequest("logit_sigma cannot be 0 (division by zero)")
        if self.pooling_type is not None:
            self._apply_pooling_type(self.pooling_type.upper())

    def _apply_pooling_type(self, pooling_type: str) -> None:
        target = "tok_pooling_type" if pooling_type in ("ALL", "STEP") else "seq_pooling_type"
        if getattr(self, target) not in (None, pooling_type):
            raise BadRequest(f"Cannot set both `pooling_type` and `{target}`")
        object.__setattr__(self, target, pooling_type)

    @classmethod
    def from_value(cls, value: PoolerConfig | Mapping[str, Any] | None) -> PoolerConfig:
        """Return a PoolerConfig from one, from a mapping, or from None."""
        if value is None or isinstance(value, cls):
            return value or cls()
        if not isinstance(value, Mapping):
            raise BadRequest(f"pooler_config must be a PoolerConfig or a mapping, got {type(value).__name__}")
        check_known_names(value, {item.name for item in fields(cls)}, "pooler_config field")
        return cls(**value)
