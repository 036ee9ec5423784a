"""Progress bars and notes on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
NO_BAR = nullcontext[UpdateBar | None](None)


def print_note(text: str, *, quiet: bool = False) -> None:
    """Print one line to standard error, where it does not mix with results."""
    if not quiet:
        print(f"cenote: {text}", file=sys.stderr, flush=True)


def progress_bar(use_tqdm: UseTqdm) -> AbstractContextManager[UpdateBar | None]:
    """Show one bar per call with the prompts that are done and tokens per second; yield its update function."""
    return show_bar(use_tqdm) if use_tqdm else NO_BAR


@contextmanager
def show_bar(use_tqdm: UseTqdm) -> Iterator[UpdateBar]:
    from tqdm import tqdm  # here: commands that only print notes start faster

    make = use_tqdm if callable(use_tqdm) else tqdm
    bar: Any = None
    requests: list[RequestProgress] = []  # several where queries are embedded before documents

    def update(request: RequestProgress) -> None:
        nonlocal bar
        if bar is None:
            speed = "est. speed input: 0.00 toks/s, output: 0.00 toks/s"
            bar = make(total=request.num_inputs, desc="Processed prompts", dynamic_ncols=True, postfix=speed)
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
