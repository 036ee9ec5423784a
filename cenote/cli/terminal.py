"""What people see: answers on a terminal, progress and notes on standard error."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cenote.files.result_slice import Answers, Floats, Layout
from cenote.files.writers import Stream, numbers_json

SHOWN_NUMBERS = 6


class Screen(Stream):
    """A few numbers per row instead of hundreds."""

    def write(self, answers: Answers) -> None:
        self.stream.write("".join(readable(answers, self.layout)).encode(errors="replace"))
        self.stream.flush()


def readable(answers: Answers, layout: Layout) -> list[str]:
    """Per row the text, cut to the width of the terminal, and the answer in short."""
    width = shutil.get_terminal_size().columns
    ranks = {place: rank for rank, place in enumerate(answers.worked)}
    lines = []
    for place, row in enumerate(answers.rows):
        title = shortened(" | ".join(row.texts) or f"row {row.index}", width)
        answer = _answer(answers, ranks[place], layout) if place in ranks else f"failed: {row.error}"
        lines.append(f"{title}\n  {answer}\n")
    return lines


def _answer(answers: Answers, rank: int, layout: Layout) -> str:
    tokens = f"{answers.num_tokens[rank]} tokens"
    if layout.has_rows:
        return f"{_rows(answers.values[answers.offsets[rank] : answers.offsets[rank + 1]], layout)}, {tokens}"
    if layout.kind == "number":
        return f"{layout.name} {_numbers(answers.values[rank], brackets=False)}, {tokens}"
    if layout.has_labels:
        return f"{answers.labels[rank]}, {layout.name} {_numbers(answers.values[rank])}, {tokens}"
    return f"{answers.values.shape[1]} numbers {_numbers(answers.values[rank])}, {tokens}"


def _rows(rows: Floats, layout: Layout) -> str:
    if layout.kind == "sparse":
        heaviest = rows[rows[:, 1].argsort()[::-1]][:SHOWN_NUMBERS]
        shown = ", ".join(f"{int(token)}: {weight:.4g}" for token, weight in heaviest.tolist())
        return f"{len(rows)} weights, heaviest {{{shown}}}"
    if rows.ndim == 1:
        return f"{len(rows)} numbers {_numbers(rows)}"
    first = f", first {_numbers(rows[0])}" if len(rows) else ""
    return f"{len(rows)} vectors of {rows.shape[1]} numbers{first}"


def _numbers(values: Any, *, brackets: bool = True) -> str:
    shown = numbers_json(values[:SHOWN_NUMBERS].round(4)).decode().strip("[]").replace(",", ", ")
    more = ", ..." if len(values) > SHOWN_NUMBERS else ""
    return f"[{shown}{more}]" if brackets else shown


def shortened(text: str, width: int) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else one_line[: max(1, width - 3)] + "..."


def note(text: str, *, quiet: bool = False) -> None:
    """One line for people; the answers go elsewhere."""
    if not quiet:
        print(f"cenote: {text}", file=sys.stderr, flush=True)


class Progress:
    """A bar of rows with tokens per second; nothing where standard error is a file or `quiet` asks for silence."""

    def __init__(self, total: int | None, done: int, *, quiet: bool) -> None:
        self.total = total
        self.done = done
        self.quiet = quiet
        self.num_tokens = 0
        self.num_rows = 0
        self.started = time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def start(self) -> None:
        """The model is loaded: time counts from here."""
        self.started = time.perf_counter()
        if not self.quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.total, initial=self.done, unit=" rows", dynamic_ncols=True, file=sys.stderr)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    @property
    def watch(self) -> Callable[[Any], None] | None:
        """For the engine to call while it works on a slice; nobody looks where there is no bar."""
        return None if self.bar is None else lambda pending: self._show(pending.num_done, pending.num_tokens)

    def add(self, answers: Answers) -> None:
        self.count(len(answers.rows), sum(answers.num_tokens))

    def count(self, num_rows: int, num_tokens: int) -> None:
        self.num_rows += num_rows
        self.num_tokens += num_tokens
        self._show(0, 0)

    def _show(self, more_rows: int, more_tokens: int) -> None:
        if self.bar is not None:
            speed = (self.num_tokens + more_tokens) / self._seconds()
            self.bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
            self.bar.update(self.done + self.num_rows + more_rows - self.bar.n)

    @property
    def speed(self) -> str:
        seconds = self._seconds()
        return f"{self.num_rows / seconds:,.0f} rows/s, {self.num_tokens / seconds:,.0f} tokens/s"

    def _seconds(self) -> float:
        return max(time.perf_counter() - self.started, 1e-9)
