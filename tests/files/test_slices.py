"""How many rows are handed to the engine at once: about a second of work."""

from __future__ import annotations

import pytest

from cenote.files import sources as subject
from cenote.files.sources import AdaptiveSlices, InputRow


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def sizes(monkeypatch: pytest.MonkeyPatch, seconds_per_row: float, num_rows: int, most_rows: int = 4096) -> list[int]:
    clock = Clock()
    monkeypatch.setattr(subject, "time", clock)
    rows = (InputRow(number, ("x" * 92,)) for number in range(num_rows))
    found = []
    for some in AdaptiveSlices(rows, most_rows):
        clock.now += seconds_per_row * len(some)
        found.append(len(some))
    return found


def test_a_fast_model_is_soon_given_as_many_rows_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sizes(monkeypatch, 1e-5, 100_000)

    assert found[:2] == [11, 82]
    assert sum(found) == 100_000
    assert found[4:-1] == [4096] * (len(found) - 5)


def test_no_slice_of_a_slow_model_takes_more_than_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = sizes(monkeypatch, 1 / 13, 1000)

    assert sum(found) == 1000
    assert max(found) / 13 <= 2


def test_a_model_that_takes_seconds_for_a_row_is_given_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(sizes(monkeypatch, 5.0, 30)[1:]) == {1}


def test_there_is_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sizes(monkeypatch, 1e-5, 10, most_rows=3) == [3, 3, 3, 1]
