"""What a scorer is, and which one a request gets."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from torch import Tensor

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.protocol.input_types import Input
from cenote.protocol.requests import Pooled, PoolRequest, Scored, ScoreRequest, ScoreType, Task
from cenote.utils.registry import Registry

Item = TypeVar("Item")
Scores = list[Scored | PoolingError]
Scorer = Callable[[ScoreRequest, "Resources", "Scorable"], Coroutine[Any, Any, Scores]]
SCORERS: Registry[Scorer] = Registry("score type")
scorer = SCORERS.register
# the kinds that read query and document together, and may be told by the text around them what to look for
JOINED: tuple[ScoreType, ...] = ("cross-encoder", "listwise")

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a scorer may ask for, and wait for."""

    pool: Callable[[PoolRequest], Awaitable[list[Pooled | PoolingError]]]
    # pool documents and answer with one number for each: how well it matches the rows of its query
    match: Callable[[PoolRequest, Sequence[Tensor]], Awaitable[list[Pooled | PoolingError]]]
    measure: Callable[[Sequence[Input]], Awaitable[list[int]]]  # in tokens
    aside: Callable[[Callable[[], Scores]], Awaitable[Scores]]  # does what takes time where nobody else is held up


@dataclass(frozen=True, slots=True)
class Scorable:
    """What scoring needs to know of a model."""

    model: str
    tasks: tuple[Task, ...]
    num_labels: int
    pad_token_id: int | None = None
    preferred: ScoreType | None = None  # what the model was made for, where its tasks alone do not tell
    max_model_len: int = 0  # tokens that it reads at once

    @property
    def score_types(self) -> tuple[ScoreType, ...]:
        """Every kind of score this model can give, its own first."""
        if self.preferred == "listwise":
            return ("listwise",) if "token_embed" in self.tasks else ()
        kinds: list[ScoreType] = []
        if "classify" in self.tasks and self.num_labels == 1:
            kinds.append("cross-encoder")
        if "embed" in self.tasks:
            kinds.append("bi-encoder")
        if "token_embed" in self.tasks:
            kinds.append("late-interaction")
        if "sparse_embed" in self.tasks:
            kinds.append("sparse")
        return tuple(sorted(kinds, key=lambda kind: kind != self.preferred))


def check_pairing(request: ScoreRequest) -> None:
    if len(request.queries) > 1 and len(request.queries) != len(request.documents):
        raise BadRequest(
            f"Input lengths must be either 1:1, 1:N or N:N; got {len(request.queries)}:{len(request.documents)}"
        )
    if not request.queries:
        raise BadRequest("At least one text element must be given")
    if not request.documents:
        raise BadRequest("At least one text_pair element must be given")


def choose(request: ScoreRequest, model: Scorable) -> Scorer:
    kinds = model.score_types
    if not kinds and "classify" in model.tasks:
        raise Unsupported(f"Scoring API is only enabled for num_labels == 1. {model.model} has {model.num_labels}.")
    if not kinds:
        raise Unsupported("This model does not support the Scoring API.")
    if kinds == ("listwise",) and request.score_type == "late-interaction":
        return SCORERS["listwise"]  # what others call it
    if request.score_type is not None and request.score_type not in kinds:
        raise Unsupported(
            f"{model.model} cannot score as {request.score_type!r}; it can: {', '.join(kinds)}", param="score_type"
        )
    kind = request.score_type or kinds[0]
    if kind not in JOINED and (request.template is not None or request.variables):
        _tell_that_texts_are_read_alone(model.model, kind)
    return SCORERS[kind]


@lru_cache  # once is enough
def _tell_that_texts_are_read_alone(model: str, kind: ScoreType) -> None:
    logger.warning(
        "instruction, chat_template and chat_template_kwargs have no effect on a score by %s: %s reads each text by "
        "itself, and no template joins them",
        kind,
        model,
    )


def asked(request: ScoreRequest, task: Task, inputs: Sequence[Input]) -> PoolRequest:
    """What the engine is asked about some inputs, in all else as the score request says."""
    return PoolRequest(
        task=task,
        inputs=inputs,
        params=request.params,
        tokenization=request.tokenization,
        adapter=request.adapter,
        media_kwargs=request.media_kwargs,
        priority=request.priority,
        tenant=request.tenant,
        keep_going=request.keep_going,
        timing=request.timing,
    )


def broadcast(queries: Sequence[Item], count: int) -> list[Item]:
    """One query serves all documents."""
    return list(queries) * count if len(queries) == 1 else list(queries)
