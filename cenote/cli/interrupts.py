"""Ctrl-C in long-running commands: finish the slice in progress, then report what is kept and how to continue."""

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
    """Delay the first SIGINT until the rows in progress, about a second of work, are done; the second one raises."""

    def __init__(self) -> None:
        self.is_pending = False
        self._is_computing = False

    @contextmanager
    def install(self) -> Iterator[InterruptHandler]:
        if threading.current_thread() is not threading.main_thread():  # Python allows signal handlers only there
            yield self
            return
        previous = signal.signal(signal.SIGINT, self._on_signal)
        try:
            yield self
        finally:
            signal.signal(signal.SIGINT, previous)

    @contextmanager
    def delay_interrupts(self) -> Iterator[None]:
        self._is_computing = True
        try:
            yield
        finally:
            self._is_computing = False

    def raise_pending(self) -> None:
        """Raise KeyboardInterrupt if a SIGINT was delayed."""
        if self.is_pending:
            raise KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_computing and not self.is_pending:
            self.is_pending = True
            return
        raise KeyboardInterrupt


@contextmanager
def add_resume_note(make_note: Callable[[], str | None]) -> Iterator[None]:
    """Add a note on what was kept and how to continue to an exception that ends the command early."""
    try:
        yield
    except (KeyboardInterrupt, PoolingError, OSError) as error:
        if (text := make_note()) is not None:
            error.add_note(text)
        raise


def how_to_continue(kept: str, partial_file: PartialFile, command_line: str, can_continue: bool) -> str:
    if not can_continue:
        return f"{kept}, in {partial_file.path}; standard input cannot be resumed: the next run starts over"
    return f"{kept}, in {partial_file.path}; run the same command to continue: {command_line}"


def format_command_line(program: str, argv: Sequence[str]) -> str:
    """Return the command quoted for a shell, with secrets masked."""
    return f"{program} {shlex.join(mask_secrets(argv, SECRET_FLAGS))}"
