"""ResultSchema: the form of a command's results. ResultSlice: rows with their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from cenote.errors import EngineStopped, PoolingError
from cenote.files.sources import InputRow
from cenote.protocol.late_chunking import Offsets, split_text
from cenote.protocol.results import Entity, EntityResult, PoolResult, ScoreResult

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


@dataclass(frozen=True, slots=True)
class ResultSchema:
    """Name and kind of the result column: a vector, number, vectors of tokens, token ids with weights, or entities."""

    name: str
    kind: Literal["vector", "number", "tokens", "sparse", "entities"] = "vector"
    has_labels: bool = False
    has_ids: bool = False
    chunk_size: int | None = None  # of late chunking: the vectors are those of chunks, with their offsets in `chunks`

    @property
    def is_variable_length(self) -> bool:
        """Whether the number of rows per result varies."""
        return self.kind in ("tokens", "sparse")


@dataclass(slots=True)
class ResultSlice:
    """Rows in input order; all fields but `rows` are about the successful ones."""

    rows: list[InputRow]
    ok_positions: list[int]  # positions in rows
    # [worked, d]; for tokens and sparse results those of all rows concatenated: [tokens, d] or [tokens]
    values: Floats
    offsets: np.ndarray[Any, np.dtype[np.int64]]  # start of each row's tokens or pairs, [worked + 1]; else empty
    num_tokens: list[int]
    labels: list[str] = field(default_factory=list)
    entities: list[EntityResult] = field(default_factory=list)

    @property
    def num_failed(self) -> int:
        return len(self.rows) - len(self.ok_positions)

    def get_chunk_offsets(self, rank: int, chunk_size: int) -> list[Offsets]:
        """Return where the chunks of a successful row are in its text."""
        return split_text(self.rows[self.ok_positions[rank]].texts[0], chunk_size)


EMPTY_SLICE = ResultSlice([], [], np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64), [])


def collect_results(
    rows: list[InputRow],
    results: Sequence[PoolResult | ScoreResult | EntityResult | PoolingError],
    schema: ResultSchema,
    label_names: list[str] | None,
) -> ResultSlice:
    """Combine rows with the results of those without an earlier error."""
    pending = [position for position, row in enumerate(rows) if row.error is None]
    succeeded, succeeded_results = [], []
    for position, result in zip(pending, results, strict=True):
        if isinstance(result, EngineStopped):
            raise result  # not an error of the row: a retry may succeed
        if isinstance(result, PoolingError):
            rows[position].error = str(result)
        else:
            succeeded.append(position)
            succeeded_results.append(result)
    values, offsets = _stack_values(succeeded_results, schema)
    labels = _best_labels(values, label_names) if schema.has_labels else []
    num_tokens = [result.num_tokens for result in succeeded_results]
    entities = [result for result in succeeded_results if isinstance(result, EntityResult)]
    return ResultSlice(rows, succeeded, values, offsets, num_tokens, labels, entities)


def _stack_values(
    results: list[PoolResult | ScoreResult | EntityResult], schema: ResultSchema
) -> tuple[Floats, np.ndarray[Any, np.dtype[np.int64]]]:
    offsets = np.zeros(0, dtype=np.int64)
    if schema.kind == "number":
        scores = [result.score for result in results if isinstance(result, ScoreResult)]
        return np.array(scores, dtype=np.float32).reshape(-1, 1), offsets
    data = [result.data for result in results if isinstance(result, PoolResult)]
    if schema.is_variable_length:
        offsets = np.cumsum([0, *(len(rows) for rows in data)], dtype=np.int64)
    if not data:
        return np.zeros((0, 0), dtype=np.float32), offsets
    return np.concatenate(data) if schema.is_variable_length else np.stack(data), offsets


def _best_labels(probs: Floats, names: list[str] | None) -> list[str]:
    best = probs.argmax(axis=1).tolist() if probs.size else []
    return [names[place] if names and place < len(names) else f"LABEL_{place}" for place in best]


def entity_values(entity: Entity) -> dict[str, Any]:
    """Return the fields of an entity in files; the score with the digits of float32."""
    score = float(str(np.float32(entity.score)))
    return {"label": entity.label, "score": score, "start": entity.start, "end": entity.end, "text": entity.text}
