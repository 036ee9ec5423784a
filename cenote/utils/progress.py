"""Progress and notes on standard error: bars on terminals and in notebooks, a line now and then in logs."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

UseTqdm = bool | Callable[..., Any]


class RequestProgress(Protocol):
    """How far a request is."""

    @property
    def num_inputs(self) -> int: ...

    @property
    def num_done(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...


UpdateBar = Callable[[RequestProgress], None]
LINE_INTERVAL_S = 30.0
NO_BAR = nullcontext[UpdateBar | None](None)


def print_note(text: str, *, quiet: bool = False) -> None:
    """Print one line to standard error, where it does not mix with results."""
    if not quiet:
        print(f"cenote: {text}", file=sys.stderr, flush=True)


def shows_bars() -> bool:
    """Whether standard error is a terminal or a notebook; elsewhere each frame of a bar would stay in a log."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")


def make_bar(**options: Any) -> Any:
    """Return a bar of tqdm, or one that prints a line now and then if standard error is not for bars."""
    from tqdm import tqdm  # here: commands that only print notes start faster

    return tqdm(dynamic_ncols=True, **options) if shows_bars() else get_line_class()(**options)


@cache
def get_line_class() -> type[Any]:
    """Return the class of bars that print a line every `LINE_INTERVAL_S`, nothing for shorter work."""
    from tqdm import tqdm

    class ProgressLines(tqdm):  # type: ignore[misc]  # tqdm has no types
        monitor_interval = 0  # without a thread
        shown_at: float | None = None
        num_lines = 0

        def __init__(self, *args: Any, **options: Any) -> None:
            line = "{desc}{n_fmt} of {total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]"
            desc = f"{options['desc']}: " if options.get("desc") else None
            super().__init__(*args, **options | {"desc": desc, "bar_format": line, "miniters": 1})

        def display(self, *args: Any, **kwargs: Any) -> None:
            now = self._time()
            if self.shown_at is None:
                self.shown_at = now
            elif now - self.shown_at >= LINE_INTERVAL_S:
                self.shown_at = now
                self.num_lines += 1
                print(self, file=sys.stderr, flush=True)

        def close(self) -> None:
            if not self.disable and self.num_lines:
                print(self, file=sys.stderr, flush=True)
            self.fp = io.StringIO()  # where tqdm would end or clear a bar
            super().close()

    return ProgressLines


def progress_bar(use_tqdm: UseTqdm) -> AbstractContextManager[UpdateBar | None]:
    """Show one bar per call with the prompts that are done and tokens per second; yield its update function."""
    return show_bar(use_tqdm) if use_tqdm else NO_BAR


@contextmanager
def show_bar(use_tqdm: UseTqdm) -> Iterator[UpdateBar]:
    make = use_tqdm if callable(use_tqdm) else make_bar
    options = {"dynamic_ncols": True} if callable(use_tqdm) else {}
    bar: Any = None
    requests: list[RequestProgress] = []  # several where queries are embedded before documents

    def update(request: RequestProgress) -> None:
        nonlocal bar
        if bar is None:
            speed = "est. speed input: 0.00 toks/s, output: 0.00 toks/s"
            bar = make(total=request.num_inputs, desc="Processed prompts", postfix=speed, **options)
        if request not in requests:
            requests.append(request)
            bar.total = sum(item.num_inputs for item in requests)
        elapsed = bar.format_dict["elapsed"] or 1e-9
        num_tokens = sum(item.num_tokens for item in requests)
        bar.postfix = f"est. speed input: {num_tokens / elapsed:.2f} toks/s, output: 0.00 toks/s"
        bar.update(sum(item.num_done for item in requests) - bar.n)

    try:
        yield update
    finally:
        if bar is not None:
            bar.close()
