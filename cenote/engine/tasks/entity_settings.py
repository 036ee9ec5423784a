"""EntitySettings: how a model finds entities; most models find none, and need no module that does."""

from __future__ import annotations

import msgspec

from cenote.protocol.spans import SpanHeadSpec


class EntitySettings(msgspec.Struct, frozen=True):
    """How a model finds entities."""

    max_model_len: int
    labels: tuple[str, ...] = ()  # of a token classifier
    unk_token_id: int | None = None
    span_head: SpanHeadSpec | None = None  # of a model that finds those of the labels in a request
