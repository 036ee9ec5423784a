"""The limit on log lines of one call site."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from cenote.utils import log_limits
from cenote.utils.log_limits import LineLimit


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def handler() -> Iterator[Lines]:
    handler, logger = Lines(), logging.getLogger("tests.limited")
    logger.handlers, logger.filters, logger.propagate = [handler], [LineLimit(max_lines=3, window_s=60)], False
    yield handler
    logger.handlers, logger.filters, logger.propagate = [], [], True


def warn(text: str) -> None:
    logging.getLogger("tests.limited").warning("bad input %s", text)


def test_further_lines_of_one_place_are_dropped_and_counted(handler: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(log_limits.time, "monotonic", lambda: now)
    for number in range(50):
        warn(f"{number} 100%s")
    now += 10
    logging.getLogger("tests.limited").error("another place")
    now += 50
    warn("later")

    assert handler.lines == [
        "bad input 0 100%s",
        "bad input 1 100%s",
        "bad input 2 100%s (similar lines are suppressed for 60 s)",
        "another place",
        "bad input later (47 similar lines were suppressed before)",
    ]


def test_the_traceback_of_a_suppressed_line_is_not_formatted(handler: Lines) -> None:
    for _ in range(10):
        try:
            raise ValueError("x" * 1000)
        except ValueError:
            logging.getLogger("tests.limited").exception("it failed")

    assert len(handler.lines) == 3


def log_failure(fail: Callable[[], object]) -> None:
    try:
        fail()
    except Exception:
        logging.getLogger("tests.limited").exception("the request failed")


def test_an_error_that_is_caused_again_and_again_hides_no_other_of_the_same_line(handler: Lines) -> None:
    for _ in range(50):
        log_failure(lambda: int("x"))
    log_failure(lambda: {}["key"])
    log_failure(lambda: [int(text) for text in ("1", "y")])

    assert len(handler.lines) == 3 + 2


def test_lines_of_a_template_are_no_kinds_of_their_own(handler: Lines) -> None:
    for number in range(50):
        template = compile("\n" * number + "1 / 0", "<template>", "eval")
        log_failure(lambda template=template: eval(template))  # type: ignore[misc]

    assert len(handler.lines) == 3
