"""RowTask: one task of `LLM` on rows, where a row that fails has its error in the list of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from cenote.errors import BadRequest, EngineStopped, PoolingError, Unsupported
from cenote.files.result_slice import ResultSchema
from cenote.protocol.params import Task
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, PoolResult, ScoreResult
from cenote.protocol.scheduling import SchedulingParams

if TYPE_CHECKING:
    from cenote.llm import LLM

COMMON_OPTIONS = ("pooling_params", "lora_request", "tokenization_kwargs")
PROMPT_OPTIONS = ("prompt", "prompt_name", "input_type")
SCORE_OPTIONS = (*COMMON_OPTIONS, "chat_template", "score_type", "instruction")
ENTITY_DEFAULTS: dict[str, Any] = {
    "aggregation_strategy": "simple",
    "ignore_labels": ("O",),
    "stride": None,
    "labels": None,
    "threshold": None,
}
# task -> keyword arguments of the method of LLM
OPTIONS: dict[str, tuple[str, ...]] = {
    "embed": (*COMMON_OPTIONS, *PROMPT_OPTIONS, "task"),
    "classify": (*COMMON_OPTIONS, *PROMPT_OPTIONS),
    "token_embed": (*COMMON_OPTIONS, *PROMPT_OPTIONS, "role"),
    "token_classify": (*COMMON_OPTIONS, *PROMPT_OPTIONS),
    "sparse_embed": (*COMMON_OPTIONS, *PROMPT_OPTIONS),
    "score": SCORE_OPTIONS,
    "rerank": (*SCORE_OPTIONS, "top_n"),
    "entities": ("lora_request", "tokenization_kwargs", *ENTITY_DEFAULTS),
}
SCHEMAS = {
    "embed": ResultSchema("embedding"),
    "classify": ResultSchema("probs", has_labels=True),
    "token_embed": ResultSchema("token_embeddings", kind="tokens"),
    "token_classify": ResultSchema("token_probs", kind="tokens"),
    "sparse_embed": ResultSchema("sparse_embedding", kind="sparse"),
    "score": ResultSchema("score", kind="number"),
}
TASKS = tuple(OPTIONS)
PAIR_TASKS = ("score", "rerank")  # two columns per row

Request = TypeVar("Request", PoolRequest, ScoreRequest)
Prompts: TypeAlias = "tuple[Any, ...]"  # of one row: a prompt, or a query and what it is compared with


@dataclass(frozen=True, slots=True)
class RankResult:
    """The documents of one query by falling score: their positions and scores."""

    ranking: list[tuple[int, float]]
    num_tokens: int


RowResult: TypeAlias = "PoolResult | ScoreResult | EntityResult | RankResult"


@dataclass(frozen=True, slots=True)
class RowTask:
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of the method of LLM
    scheduling: SchedulingParams | None = None  # None: as the methods of LLM

    def __post_init__(self) -> None:
        if self.task not in OPTIONS:
            raise BadRequest(f"unknown task {self.task!r}; expected one of: {', '.join(TASKS)}", param="task")
        if unknown := [name for name in self.options if name not in OPTIONS[self.task]]:
            known = ", ".join(OPTIONS[self.task])
            raise BadRequest(f"unknown option {unknown[0]!r} of the task {self.task}; expected some of: {known}")

    @property
    def num_columns(self) -> int:
        return 2 if self.task in PAIR_TASKS else 1

    def check(self, llm: LLM) -> None:
        """Raise if the model does not have the task."""
        if self.task == "entities" and not llm.engine.model_info.supports_entities:
            raise Unsupported(f"{llm.engine.model_info.name} finds no entities; use a token classification model")
        if self.task in SCHEMAS and self.task != "score":
            llm.engine.request_checks.check_task(cast(Task, self.task))

    def run(self, llm: LLM, rows: Sequence[Prompts]) -> list[RowResult | PoolingError]:
        """Return a result or an error for each row, also where something is wrong with all of them."""
        return isolate_failures(lambda some: self.compute(llm, some), rows) if rows else []

    def compute(
        self, llm: LLM, rows: Sequence[Prompts], on_progress: Callable[[Any], None] | None = None
    ) -> Sequence[RowResult | PoolingError]:
        """Return a result or an error for each row; raise what is wrong with all of them, or with one of entities.

        `on_progress` is called with the state of a pooling request.
        """
        if self.task == "score":
            return self.score_pairs(llm, [query for query, _ in rows], [document for _, document in rows])
        if self.task == "rerank":
            return self._rerank(llm, rows)
        return self._entities(llm, rows) if self.task == "entities" else self._pool(llm, rows, on_progress)

    def _pool(
        self, llm: LLM, rows: Sequence[Prompts], on_progress: Callable[[Any], None] | None
    ) -> Sequence[PoolResult | PoolingError]:
        from cenote.engine.offline_requests import make_pool_request

        selection = {name: self.options.get(name) for name in (*PROMPT_OPTIONS, "role")}
        request = make_pool_request(
            llm.engine,
            (cast(Task, self.task),),
            [prompt for (prompt,) in rows],
            *[self.options.get(name) for name in COMMON_OPTIONS],
            embedding_task=self.options.get("task"),
            return_exceptions=True,
            **selection,
        )
        return llm.engine.pool_sync(self._schedule(request), on_progress)

    def _rerank(self, llm: LLM, rows: Sequence[Prompts]) -> Sequence[RankResult | PoolingError]:
        if llm.engine.scoring_model.score_types[0] == "listwise":  # a prompt holds all documents of one query
            return [self._rank(self.score_pairs(llm, [query], documents)) for query, documents in rows]
        queries = [query for query, documents in rows for _ in documents]
        scores = iter(self.score_pairs(llm, queries, [item for _, documents in rows for item in documents]))
        return [self._rank([next(scores) for _ in documents]) for _, documents in rows]

    def score_pairs(
        self, llm: LLM, queries: Sequence[Any], documents: Sequence[Any]
    ) -> Sequence[ScoreResult | PoolingError]:
        """Score each document for the query of the same place, or all of them for the only query."""
        from cenote.engine.offline_requests import make_score_request

        if not documents:
            return []
        args = [self.options.get(name) for name in SCORE_OPTIONS]
        request = make_score_request(llm.engine, list(queries), list(documents), *args)
        return llm.engine.score_sync(self._schedule(request).replace(return_exceptions=True))

    def _rank(self, results: Sequence[ScoreResult | PoolingError]) -> RankResult | PoolingError:
        scores: list[float] = []
        num_tokens = 0
        for position, result in enumerate(results):
            if isinstance(result, PoolingError):
                if not isinstance(result, EngineStopped):
                    result.add_note(f"of document {position}")
                return result
            scores.append(result.score)
            num_tokens += result.num_tokens
        order = sorted(range(len(scores)), key=lambda position: -scores[position])
        return RankResult([(position, scores[position]) for position in order[: self.options.get("top_n")]], num_tokens)

    def _entities(self, llm: LLM, rows: Sequence[Prompts]) -> Sequence[EntityResult]:
        from cenote.engine.offline_requests import make_entity_request

        request = make_entity_request(
            llm.engine,
            [text for (text,) in rows],
            self.options.get("lora_request"),
            self.options.get("tokenization_kwargs"),
            **{name: self.options.get(name, default) for name, default in ENTITY_DEFAULTS.items()},
        )
        return llm.engine.entities_sync(request)

    def _schedule(self, request: Request) -> Request:
        return request if self.scheduling is None else request.replace(scheduling=self.scheduling)


def isolate_failures(
    run_all: Callable[[Sequence[Prompts]], Sequence[RowResult | PoolingError]], rows: Sequence[Prompts]
) -> list[RowResult | PoolingError]:
    """Run all rows at once; where that fails as a whole, run halves, down to the rows that fail alone."""
    try:
        results = list(run_all(rows))
    except EngineStopped:
        raise
    except PoolingError as error:
        if len(rows) == 1:
            return [error]
        middle = len(rows) // 2
        return [*isolate_failures(run_all, rows[:middle]), *isolate_failures(run_all, rows[middle:])]
    for result in results:
        if isinstance(result, EngineStopped):
            raise result  # not an error of the row: the actor is restarted, and the rows run again
    return results
