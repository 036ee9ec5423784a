"""Groups of sequences that a scheduler selects batches from, without their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cenote.protocol.scheduling import SchedulingParams


@dataclass(eq=False)
class FakeGroup:
    """Sequences of one request; mostly a single one."""

    lengths: list[int]
    scheduling: SchedulingParams = SchedulingParams()
    is_aborted: bool = False
    arrival: int = 0
    deadline_at: float = 0.0

    def equal_length_runs(self) -> Iterator[tuple[int, int, int]]:
        start = 0
        for length, group in groupby(self.lengths):
            end = start + len(list(group))
            yield length, start, end
            start = end


def get_lengths(batch: list[Any]) -> list[int]:
    return [length for group, start, end in batch for length in group.lengths[start:end]]
