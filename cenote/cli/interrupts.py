"""Ctrl-C in commands that work for hours: what is being computed is finished, and the message says how to go on."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cenote.errors import PoolingError
from cenote.files.partial_file import Part

SECRETS = ("--hf-token",)


class Interrupts:
    """Holds the first SIGINT back while rows are computed, about a second of work; a second one stops at once."""

    def __init__(self) -> None:
        self.held = False
        self._computing = False

    @contextmanager
    def handled(self) -> Iterator[Interrupts]:
        if threading.current_thread() is not threading.main_thread():  # where Python allows no handler
            yield self
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def computing(self) -> Iterator[None]:
        self._computing = True
        try:
            yield
        finally:
            self._computing = False

    def check(self) -> None:
        """Raise what was held back."""
        if self.held:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._computing and not self.held:
            self.held = True
            return
        raise KeyboardInterrupt


@contextmanager
def saying_how_to_continue(note: Callable[[], str | None]) -> Iterator[None]:
    """Adds to whatever ends the command early what was kept and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, PoolingError, OSError) as stop:
        if (text := note()) is not None:
            stop.add_note(text)
        raise


def how_to_continue(kept: str, part: Part, command_line: str, can_continue: bool) -> str:
    if not can_continue:
        return f"{kept}, in {part.path}; standard input cannot be continued: the next run starts over"
    return f"{kept}, in {part.path}; the same command continues: {command_line}"


def command_line(program: str, argv: Sequence[str]) -> str:
    """The command as a shell reads it, without secrets."""
    words: list[str] = []
    hide = False
    for word in argv:
        name, equals, _ = word.partition("=")
        is_secret = name.replace("_", "-") in SECRETS
        words.append("..." if hide else f"{name}=..." if is_secret and equals else word)
        hide = is_secret and not equals
    return f"{program} {shlex.join(words)}"
