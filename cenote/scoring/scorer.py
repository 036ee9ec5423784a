"""The scorer interface, and the selection of the scorer for a request."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.protocol.input_types import Input
from cenote.protocol.params import ScoreType, Task
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResult, ScoreResult
from cenote.utils.registry import Registry

T = TypeVar("T")
PoolResults = list[PoolResult | PoolingError]
ScoreResults = list[ScoreResult | PoolingError]
Scorer = Callable[[ScoreRequest, "ScoringContext", "ScoringModel"], Coroutine[Any, Any, ScoreResults]]
SCORERS: Registry[Scorer] = Registry("score type")
register_scorer = SCORERS.register
# types that encode query and document together, in a template that may contain an instruction
JOINT_SCORE_TYPES: tuple[ScoreType, ...] = ("cross-encoder", "listwise")

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class ScoringContext:
    """The engine operations that a scorer may await."""

    pool: Callable[[PoolRequest], Awaitable[PoolResults]]
    # pool documents and return the MaxSim score of each with the token embeddings of its query
    max_sim: Callable[[PoolRequest, Sequence[Any]], Awaitable[PoolResults]]
    count_tokens: Callable[[Sequence[Input]], Awaitable[list[int]]]
    # run a slow function without blocking the event loop
    run_in_thread: Callable[[Callable[[], ScoreResults]], Awaitable[ScoreResults]]


@dataclass(frozen=True, slots=True)
class ScoringModel:
    """Properties of a model that scoring depends on."""

    name: str
    tasks: tuple[Task, ...]
    num_labels: int
    pad_token_id: int | None = None
    preferred_score_type: ScoreType | None = None  # set if it does not follow from the tasks
    max_model_len: int = 0
    pair_prompt: str = ""  # of a cross-encoder, prepended to queries that are in no template
    has_routes: bool = False  # queries and documents are encoded by different modules
    divides_max_sim: bool = False  # late interaction: the score is divided by the number of query embeddings
    has_role_formats: bool = False  # the model formats queries and documents differently
    reads_images: bool = False

    @property
    def score_types(self) -> tuple[ScoreType, ...]:
        """The score types that the model supports, the preferred one first."""
        if self.preferred_score_type == "listwise":
            return ("listwise",) if "token_embed" in self.tasks else ()
        types: list[ScoreType] = []
        if "classify" in self.tasks and self.num_labels == 1:
            types.append("cross-encoder")
        if "embed" in self.tasks:
            types.append("bi-encoder")
        if "token_embed" in self.tasks:
            types.append("late-interaction")
        if "sparse_embed" in self.tasks:
            types.append("sparse")
        return tuple(sorted(types, key=lambda score_type: score_type != self.preferred_score_type))


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
    types = model.score_types
    if not types and "classify" in model.tasks:
        raise Unsupported(f"Scoring API is only enabled for num_labels == 1. {model.name} has {model.num_labels}.")
    if not types:
        raise Unsupported("This model does not support the Scoring API.")
    if types == ("listwise",) and request.score_type == "late-interaction":
        return SCORERS["listwise"]  # the name that other servers use
    if request.score_type is not None and request.score_type not in types:
        raise Unsupported(
            f"{model.name} does not support score_type {request.score_type!r}; available: {', '.join(types)}",
            param="score_type",
        )
    score_type = request.score_type or types[0]
    if score_type not in JOINT_SCORE_TYPES and (request.template is not None or request.template_variables):
        _warn_template_ignored(model.name, score_type)
    return SCORERS[score_type]


@lru_cache  # warn once
def _warn_template_ignored(model: str, score_type: ScoreType) -> None:
    logger.warning(
        "instruction, chat_template and chat_template_kwargs are ignored for score type %s: %s encodes query and "
        "document separately",
        score_type,
        model,
    )


def make_pool_request(request: ScoreRequest, task: Task, inputs: Sequence[Input]) -> PoolRequest:
    """Return a pool request for all inputs with the settings of the score request."""
    return PoolRequest(
        task=task,
        inputs=inputs,
        params=request.params,
        tokenization=request.tokenization,
        adapter=request.adapter,
        mm_processor_kwargs=request.mm_processor_kwargs,
        scheduling=request.scheduling,
        deadline_at=request.deadline_at,
        return_exceptions=request.return_exceptions,
        timing=request.timing,
        on_tokenized=request.on_tokenized,
    )


def broadcast_queries(queries: Sequence[T], num_documents: int) -> list[T]:
    """Return one query per document, repeating a single query."""
    return list(queries) * num_documents if len(queries) == 1 else list(queries)


def to_array(data: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a result, a tensor or an array, as float32."""
    if hasattr(data, "float"):  # a tensor, which may have a dtype that NumPy lacks
        data = data.float()
    return np.ascontiguousarray(data, dtype=np.float32)
