"""Inputs of a request that ask the same: what waits, what a batch is made of, and what its answers come back as."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import Integers, Strip
from cenote.pooling.pooler import Ask


@dataclass(slots=True, eq=False)
class Lot:
    """Neighbours of equal length make the scheduler's work light, so whoever makes a lot sorts it by length."""

    strip: Strip
    indices: Integers  # which inputs of their request these are
    asks: tuple[Ask, ...]  # nearly always one
    receiver: Receiver
    priority: int = 0
    adapter: str | None = None
    against: Many[Tensor] | None = None  # for each input the rows of a query to compare it with

    @property
    def abandoned(self) -> bool:
        return self.receiver.abandoned

    def between(self, start: int, end: int) -> Lot:
        """Neighbours, as a lot of their own."""
        if end - start == len(self.indices):
            return self
        against = None if self.against is None else self.against[start:end]
        return replace(self, strip=self.strip.between(start, end), indices=self.indices[start:end], against=against)

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """The lengths of neighbours that are equally long, and where these begin and end."""
        lengths = self.strip.lengths
        if len(lengths) == 1:  # as it is for every single query
            return iter([(int(lengths[0]), 0, 1)])
        starts = np.flatnonzero(np.diff(lengths, prepend=-1)).tolist()
        return zip(lengths[starts].tolist(), starts, [*starts[1:], len(lengths)], strict=True)


class Part(NamedTuple):
    """Neighbours in a lot."""

    lot: Lot
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def indices(self) -> Integers:
        return self.lot.indices[self.start : self.end]

    def length(self) -> int:
        """Of its first sequence; the scheduler makes parts of equal lengths."""
        return int(self.lot.strip.lengths[self.start])

    def cut(self, place: int) -> tuple[Part, Part]:
        middle = self.start + place
        return Part(self.lot, self.start, middle), Part(self.lot, middle, self.end)


class Batch:
    """What runs at once. Its sequences have numbers, part after part."""

    def __init__(self, parts: Many[Part]) -> None:
        self.parts = parts
        self.size = sum(part.end - part.start for part in parts)

    def __len__(self) -> int:
        return self.size

    @cached_property
    def strip(self) -> Strip:
        return Strip.joined([part.lot.strip.between(part.start, part.end) for part in self.parts])

    @cached_property
    def indices(self) -> Integers:
        several = [part.indices for part in self.parts]
        return several[0] if len(several) == 1 else np.concatenate(several)

    @property
    def num_tokens(self) -> int:
        return len(self.strip.token_ids)

    @property
    def asks(self) -> list[tuple[Ask, ...]]:
        """For every sequence."""
        return [asks for part in self.parts for asks in [part.lot.asks] * part.size]

    @property
    def queries(self) -> list[Tensor | None]:
        """For every sequence the rows to compare it with."""
        queries: list[Tensor | None] = []
        for lot, start, end in self.parts:
            queries += [None] * (end - start) if lot.against is None else lot.against[start:end]
        return queries

    @property
    def adapters(self) -> tuple[str | None, ...] | None:
        """For every sequence; None where none has any."""
        if all(part.lot.adapter is None for part in self.parts):
            return None
        return tuple(name for part in self.parts for name in [part.lot.adapter] * part.size)

    def asking(self, ask: Ask) -> Batch:
        """Those of which this is asked."""
        return Batch([part for part in self.parts if ask in part.lot.asks])

    def halves(self) -> tuple[Batch, Batch]:
        first, rest, room = list[Part](), list[Part](), self.size // 2
        for part in self.parts:
            before, after = part.cut(min(room, part.size))
            room -= before.size
            first += [before] if before.size else []
            rest += [after] if after.size else []
        return Batch(first), Batch(rest)

    def each(self) -> Iterator[Batch]:
        """Every sequence by itself."""
        for lot, start, end in self.parts:
            for place in range(start, end):
                yield Batch([Part(lot, place, place + 1)])


class Rows(NamedTuple):
    """Answers on the host: one row for each sequence, or any number of neighbouring rows."""

    values: Tensor
    offsets: Many[int] | None = None  # [size + 1], where the rows of each begin, and the end
    shapes: Many[tuple[int, ...]] | None = None  # [size], of answers of any shape, whose rows are single numbers

    @classmethod
    def of(cls, values: Tensor, counts: Many[int] | None) -> Rows:
        return cls(values, None if counts is None else list(accumulate(counts, initial=0)))

    @classmethod
    def of_any_shape(cls, answers: Many[Tensor]) -> Rows:
        flat = [answer.flatten() for answer in answers]
        offsets = list(accumulate(map(len, flat), initial=0))
        return cls(torch.cat(flat), offsets, [tuple(answer.shape) for answer in answers])

    def __len__(self) -> int:
        return self.values.shape[0] if self.offsets is None else len(self.offsets) - 1

    def each(self) -> Many[Tensor]:
        # views of their batch: thousands of small copies would scatter over the heap and bloat it
        if self.offsets is None:
            return self.values.unbind(0)
        counts = [end - start for start, end in pairwise(self.offsets)]
        pieces = torch.split(self.values[self.offsets[0] : self.offsets[-1]], counts)
        if self.shapes is None:
            return pieces
        return [piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def between(self, start: int, end: int) -> Rows:
        if self.offsets is None:
            return Rows(self.values[start:end])
        return Rows(self.values, self.offsets[start : end + 1], None if self.shapes is None else self.shapes[start:end])


class Answered(NamedTuple):
    """Inputs of one request, and the answers to them."""

    strip: Strip
    indices: Integers
    rows: tuple[Rows, ...]  # one for each thing that was asked

    def each(self) -> list[Many[Tensor]]:
        """For each thing that was asked, a tensor for every input."""
        return [rows.each() for rows in self.rows]

    @property
    def width(self) -> int | None:
        """The size of the vectors that the answers are; None where they are anything else."""
        first = self.rows[0]
        return (
            first.values.shape[1] if len(self.rows) == 1 and first.offsets is None and first.values.ndim == 2 else None
        )

    @classmethod
    def in_order(cls, several: Many[Answered]) -> Answered:
        """Vectors of one size and what they answer, in the order of the inputs."""
        indices = np.concatenate([each.indices for each in several])
        order = np.argsort(indices)
        rows = torch.cat([each.rows[0].values for each in several]) if len(several) > 1 else several[0].rows[0].values
        rows = rows if np.array_equal(order, np.arange(len(order))) else rows[torch.from_numpy(order)]
        return cls(Strip.joined([each.strip for each in several]).taken(order), indices[order], (Rows(rows),))

    def between(self, start: int, end: int) -> Answered:
        rows = tuple(each.between(start, end) for each in self.rows)
        return Answered(self.strip.between(start, end), self.indices[start:end], rows)


class Receiver(Protocol):
    """Whoever waits for the answers to a lot."""

    @property
    def abandoned(self) -> bool: ...

    def start(self, now: float) -> None:
        """A batch that holds some of its sequences begins."""
        ...

    def receive(self, answered: Many[Answered]) -> None: ...

    def fail(self, index: int, error: PoolingError) -> None: ...
