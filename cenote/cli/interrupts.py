"""Ctrl-C in commands that work for hours: what is being computed is finished, and the message says how to go on."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from cenote.errors import PoolingError
from cenote.files.partial_file import PartialFile
from cenote.utils.arguments import mask_secrets

SECRET_FLAGS = ("--hf-token",)


class InterruptHandler:
    """Holds the first SIGINT back while rows are computed, about a second of work; a second one stops at once."""

    def __init__(self) -> None:
        self.is_pending = False
        self._is_computing = False

    @contextmanager
    def install(self) -> Iterator[InterruptHandler]:
        if threading.current_thread() is not threading.main_thread():  # where Python allows no handler
            yield self
            return
        before = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, before)

    @contextmanager
    def delay_interrupts(self) -> Iterator[None]:
        self._is_computing = True
        try:
            yield
        finally:
            self._is_computing = False

    def raise_pending(self) -> None:
        """Raise what was held back."""
        if self.is_pending:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_computing and not self.is_pending:
            self.is_pending = True
            return
        raise KeyboardInterrupt


@contextmanager
def add_resume_note(make_note: Callable[[], str | None]) -> Iterator[None]:
    """Adds to whatever ends the command early what was kept and how to go on."""
    try:
        yield
    except (KeyboardInterrupt, PoolingError, OSError) as stop:
        if (text := make_note()) is not None:
            stop.add_note(text)
        raise


def how_to_continue(kept: str, part: PartialFile, command_line: str, can_continue: bool) -> str:
    if not can_continue:
        return f"{kept}, in {part.path}; standard input cannot be continued: the next run starts over"
    return f"{kept}, in {part.path}; the same command continues: {command_line}"


def format_command_line(program: str, argv: Sequence[str]) -> str:
    """The command as a shell reads it, without secrets."""
    return f"{program} {shlex.join(mask_secrets(argv, SECRET_FLAGS))}"
