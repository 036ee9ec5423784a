"""What a command's rows hold, and a slice of rows together with what the model said to each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from cenote.errors import EngineStopped, PoolingError
from cenote.files.sources import Row
from cenote.protocol.requests import Pooled, Scored

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


@dataclass(frozen=True, slots=True)
class Layout:
    """The answer's name in the output and whether it is a vector, one number, a vector per token, or weighted ids."""

    name: str
    kind: Literal["vector", "number", "tokens", "sparse"] = "vector"
    has_labels: bool = False
    has_ids: bool = False

    @property
    def has_rows(self) -> bool:
        """Whether an answer has as many rows as its text happens to need."""
        return self.kind in ("tokens", "sparse")


@dataclass(slots=True)
class Answers:
    """Rows in their order; everything but `rows` is only about those that worked."""

    rows: list[Row]
    worked: list[int]  # positions in rows
    # [worked, d]; for tokens and pairs of id and weight those of all rows laid end to end: [tokens, d] or [tokens]
    values: Floats
    offsets: np.ndarray[Any, np.dtype[np.int64]]  # where a row's tokens or pairs begin, [worked + 1]; else empty
    num_tokens: list[int]
    labels: list[str] = field(default_factory=list)

    @property
    def num_failed(self) -> int:
        return len(self.rows) - len(self.worked)


NO_ANSWERS = Answers([], [], np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64), [])


def gather(
    rows: list[Row], results: Sequence[Pooled | Scored | PoolingError], layout: Layout, names: list[str] | None
) -> Answers:
    """Joins the rows with the results of those that had no error before; the others' errors stay with their row."""
    asked = [position for position, row in enumerate(rows) if row.error is None]
    worked, answers = [], []
    for position, result in zip(asked, results, strict=True):
        if isinstance(result, EngineStopped):
            raise result  # the rows are fine, and so would be the next try
        if isinstance(result, PoolingError):
            rows[position].error = str(result)
        else:
            worked.append(position)
            answers.append(result)
    values, offsets = _values(answers, layout)
    labels = _labels(values, names) if layout.has_labels else []
    return Answers(rows, worked, values, offsets, [answer.num_tokens for answer in answers], labels)


def _values(answers: list[Pooled | Scored], layout: Layout) -> tuple[Floats, np.ndarray[Any, np.dtype[np.int64]]]:
    offsets = np.zeros(0, dtype=np.int64)
    if layout.kind == "number":
        scores = [answer.score for answer in answers if isinstance(answer, Scored)]
        return np.array(scores, dtype=np.float32).reshape(-1, 1), offsets
    data = [answer.data for answer in answers if isinstance(answer, Pooled)]
    if layout.has_rows:
        offsets = np.cumsum([0, *(len(rows) for rows in data)], dtype=np.int64)
    if not data:
        return np.zeros((0, 0), dtype=np.float32), offsets
    import torch

    joined = torch.cat(data) if layout.has_rows else torch.stack(data)
    return np.asarray(joined.float().cpu().numpy()), offsets


def _labels(probs: Floats, names: list[str] | None) -> list[str]:
    best = probs.argmax(axis=1).tolist() if probs.size else []
    return [names[place] if names and place < len(names) else f"LABEL_{place}" for place in best]
