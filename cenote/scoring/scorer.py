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
from cenote.protocol.params import ScoreType, Task
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.utils.registry import Registry

T = TypeVar("T")
ScoreResults = list[ScoreResult | PoolingError]
Scorer = Callable[[ScoreRequest, "ScoringContext", "ScoringModel"], Coroutine[Any, Any, ScoreResults]]
SCORERS: Registry[Scorer] = Registry("score type")
register_scorer = SCORERS.register
# the kinds that read query and document together, and may be told by the text around them what to look for
JOINT_SCORE_TYPES: tuple[ScoreType, ...] = ("cross-encoder", "listwise")

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """What a scorer may ask for, and wait for."""

    pool: Callable[[PoolRequest], Awaitable[list[PoolResult | PoolingError]]]
    # pool documents and answer with one number for each: how well it matches the rows of its query
    max_sim: Callable[[PoolRequest, Sequence[Tensor]], Awaitable[list[PoolResult | PoolingError]]]
    count_tokens: Callable[[Sequence[Input]], Awaitable[list[int]]]  # in tokens
    run_in_thread: Callable[
        [Callable[[], ScoreResults]], Awaitable[ScoreResults]
    ]  # does what takes time where nobody else is held up


@dataclass(frozen=True, slots=True)
class ScoringModel:
    """What scoring needs to know of a model."""

    name: str
    tasks: tuple[Task, ...]
    num_labels: int
    pad_token_id: int | None = None
    preferred_score_type: ScoreType | None = None  # what the model was made for, where its tasks alone do not tell
    max_model_len: int = 0  # tokens that it reads at once

    @property
    def score_types(self) -> tuple[ScoreType, ...]:
        """Every kind of score this model can give, its own first."""
        if self.preferred_score_type == "listwise":
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
        return tuple(sorted(kinds, key=lambda kind: kind != self.preferred_score_type))


def check_pair_counts(request: ScoreRequest) -> None:
    if len(request.queries) > 1 and len(request.queries) != len(request.documents):
        raise BadRequest(
            f"Input lengths must be either 1:1, 1:N or N:N; got {len(request.queries)}:{len(request.documents)}"
        )
    if not request.queries:
        raise BadRequest("At least one text element must be given")
    if not request.documents:
        raise BadRequest("At least one text_pair element must be given")


def select_scorer(request: ScoreRequest, model: ScoringModel) -> Scorer:
    kinds = model.score_types
    if not kinds and "classify" in model.tasks:
        raise Unsupported(f"Scoring API is only enabled for num_labels == 1. {model.name} has {model.num_labels}.")
    if not kinds:
        raise Unsupported("This model does not support the Scoring API.")
    if kinds == ("listwise",) and request.score_type == "late-interaction":
        return SCORERS["listwise"]  # what others call it
    if request.score_type is not None and request.score_type not in kinds:
        raise Unsupported(
            f"{model.name} cannot score as {request.score_type!r}; it can: {', '.join(kinds)}", param="score_type"
        )
    kind = request.score_type or kinds[0]
    if kind not in JOINT_SCORE_TYPES and (request.template is not None or request.template_variables):
        _warn_template_ignored(model.name, kind)
    return SCORERS[kind]


@lru_cache  # once is enough
def _warn_template_ignored(model: str, score_type: ScoreType) -> None:
    logger.warning(
        "instruction, chat_template and chat_template_kwargs have no effect on a score by %s: %s reads each text by "
        "itself, and no template joins them",
        score_type,
        model,
    )


def make_pool_request(request: ScoreRequest, task: Task, inputs: Sequence[Input]) -> PoolRequest:
    """What the engine is asked about some inputs, in all else as the score request says."""
    return PoolRequest(
        task=task,
        inputs=inputs,
        params=request.params,
        tokenization=request.tokenization,
        adapter=request.adapter,
        mm_processor_kwargs=request.mm_processor_kwargs,
        priority=request.priority,
        tenant=request.tenant,
        return_exceptions=request.return_exceptions,
        timing=request.timing,
    )


def broadcast_queries(queries: Sequence[T], num_documents: int) -> list[T]:
    """One query serves all documents."""
    return list(queries) * num_documents if len(queries) == 1 else list(queries)
