"""LineLimit: at most so many log lines a minute from one place in the code, so that no client can fill the disk."""

from __future__ import annotations

import logging
import threading
import time
from typing import TypeAlias

MAX_LINES, WINDOW_S = 20, 60.0

LineKind: TypeAlias = tuple[str | int, ...]


class LineLimit(logging.Filter):
    """Count the lines of each call site; further ones are dropped until the window ends, and their number is logged.

    Clients can cause any line that a request reaches: invalid frames, tracebacks, warnings about inputs. One line of
    the code may log many kinds of errors, so that each kind counts on its own: a client that causes one of them again
    and again hides no other.
    """

    def __init__(self, max_lines: int = MAX_LINES, window_s: float = WINDOW_S) -> None:
        super().__init__()
        self.max_lines = max_lines
        self.window_s = window_s
        self._windows: dict[LineKind, _Window] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            now, site = time.monotonic(), _get_kind(record)
            window = self._windows.get(site)
            if window is None or now - window.started_at >= self.window_s:
                if window is not None and window.num_lines > self.max_lines:
                    _add_note(record, f"{window.num_lines - self.max_lines} similar lines were suppressed before")
                window = self._windows[site] = _Window(now)
            window.num_lines += 1
            if window.num_lines == self.max_lines:
                rest_s = window.started_at + self.window_s - now
                _add_note(record, f"similar lines are suppressed for {rest_s:.0f} s")
            return window.num_lines <= self.max_lines


def _get_kind(record: logging.LogRecord) -> LineKind:
    """Return the file and line that call the logger and, with an exception, its class and the line that raised it.

    Lines of compiled texts, such as templates of clients, do not count: there would be no end of them.
    """
    if not record.exc_info or (error := record.exc_info[1]) is None:
        return record.pathname, record.lineno
    place: LineKind = ()
    frame = error.__traceback__
    while frame is not None:
        if not (name := frame.tb_frame.f_code.co_filename).startswith("<"):
            place = name, frame.tb_lineno
        frame = frame.tb_next
    return record.pathname, record.lineno, type(error).__qualname__, *place


class _Window:
    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.num_lines = 0


def _add_note(record: logging.LogRecord, note: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({note})", ()
