"""Progress in a log: a line now and then, without the frames of a bar."""

from __future__ import annotations

import io

import pytest

from cenote.utils import progress


def test_long_work_writes_a_line_every_interval_into_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", log := io.StringIO())
    clock = [0.0]
    bar = progress.make_bar(total=800, desc="Processed prompts")
    monkeypatch.setattr(bar, "_time", lambda: clock[0])
    bar.start_t = bar.last_print_t = bar.shown_at = 0.0

    for _ in range(800):  # 100 seconds
        clock[0] += 0.125
        bar.update(1)
    bar.close()

    lines = log.getvalue().splitlines()
    assert [line.partition(" [")[0] for line in lines] == [
        f"Processed prompts: {done} of 800" for done in (240, 480, 720, 800)
    ]
    assert "\r" not in log.getvalue()


def test_short_work_writes_nothing_into_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", log := io.StringIO())

    bar = progress.make_bar(total=5, unit=" rows")
    bar.update(5)
    bar.close()

    assert log.getvalue() == ""
