"""Results formatted for a terminal, and the progress bar on standard error."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from cenote.files.result_slice import Floats, ResultSchema, ResultSlice
from cenote.files.writers import StreamWriter, encode_numbers
from cenote.protocol.results import EntityResult
from cenote.utils.progress import make_bar

MAX_SHOWN_NUMBERS = 6
MAX_SHOWN_CHARS = 40  # of an entity


class TerminalWriter(StreamWriter):
    """Print a short form of every result: a few numbers per row instead of hundreds."""

    def write(self, results: ResultSlice) -> None:
        self.stream.write("".join(format_results(results, self.schema)).encode(errors="replace"))
        self.stream.flush()


def format_results(results: ResultSlice, schema: ResultSchema) -> list[str]:
    """Format per row the text, shortened to the width of the terminal, and a short form of the result."""
    width = shutil.get_terminal_size().columns
    ranks = {position: rank for rank, position in enumerate(results.ok_positions)}
    lines = []
    for position, row in enumerate(results.rows):
        title = shorten(" | ".join(row.texts) or f"row {row.index}", width)
        result = _format_result(results, ranks[position], schema) if position in ranks else f"failed: {row.error}"
        lines.append(f"{title}\n  {result}\n")
    return lines


def _format_result(results: ResultSlice, rank: int, schema: ResultSchema) -> str:
    tokens = f"{results.num_tokens[rank]} tokens"
    if schema.kind == "entities":
        return f"{_format_entities(results.entities[rank])}, {tokens}"
    if schema.is_variable_length:
        return f"{_format_rows(results.values[results.offsets[rank] : results.offsets[rank + 1]], schema)}, {tokens}"
    if schema.kind == "number":
        return f"{schema.name} {_format_numbers(results.values[rank], brackets=False)}, {tokens}"
    if schema.has_labels:
        return f"{results.labels[rank]}, {schema.name} {_format_numbers(results.values[rank])}, {tokens}"
    return f"{results.values.shape[1]} numbers {_format_numbers(results.values[rank])}, {tokens}"


def _format_entities(result: EntityResult) -> str:
    found = [
        f"{entity.label} {shorten(entity.text, MAX_SHOWN_CHARS)!r} {entity.score:.4f}" for entity in result.entities
    ]
    rest = ["the rest of the text was cut off"] if result.truncated else []
    return ", ".join([*(found or ["no entities"]), *rest])


def _format_rows(rows: Floats, schema: ResultSchema) -> str:
    if schema.kind == "sparse":
        largest = rows[rows[:, 1].argsort()[::-1]][:MAX_SHOWN_NUMBERS]
        shown = ", ".join(f"{int(token)}: {weight:.4g}" for token, weight in largest.tolist())
        return f"{len(rows)} weights, largest {{{shown}}}"
    if rows.ndim == 1:
        return f"{len(rows)} numbers {_format_numbers(rows)}"
    first = f", first {_format_numbers(rows[0])}" if len(rows) else ""
    return f"{len(rows)} vectors of {rows.shape[1]} numbers{first}"


def _format_numbers(values: Any, *, brackets: bool = True) -> str:
    shown = encode_numbers(values[:MAX_SHOWN_NUMBERS].round(4)).decode().strip("[]").replace(",", ", ")
    more = ", ..." if len(values) > MAX_SHOWN_NUMBERS else ""
    return f"[{shown}{more}]" if brackets else shown


def shorten(text: str, width: int) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= width else one_line[: max(1, width - 3)] + "..."


class RowProgress:
    """Progress of rows with tokens per second, as a bar, or as lines in a log; not shown if `quiet` is set."""

    def __init__(self, total: int | None, done: int, *, quiet: bool) -> None:
        self.total = total
        self.num_resumed = done
        self.quiet = quiet
        self.num_tokens = 0
        self.num_rows = 0
        self.started_at = time.perf_counter()
        self.bar: Any = None

    def __enter__(self) -> RowProgress:
        return self

    def start(self) -> None:
        """Start the clock and the bar; called when the model is loaded."""
        self.started_at = time.perf_counter()
        if not self.quiet:
            self.bar = make_bar(total=self.total, initial=self.num_resumed, unit=" rows")

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    @property
    def on_progress(self) -> Callable[[Any], None] | None:
        """Return the callback for the engine's progress within a slice; None if there is no bar."""
        return None if self.bar is None else lambda request: self._update_bar(request.num_done, request.num_tokens)

    def add_slice(self, results: ResultSlice) -> None:
        self.advance(len(results.rows), sum(results.num_tokens))

    def advance(self, num_rows: int, num_tokens: int) -> None:
        self.num_rows += num_rows
        self.num_tokens += num_tokens
        self._update_bar(0, 0)

    def _update_bar(self, more_rows: int, more_tokens: int) -> None:
        if self.bar is not None:
            speed = (self.num_tokens + more_tokens) / self._elapsed_s()
            self.bar.set_postfix_str(f"{speed:,.0f} tokens/s", refresh=False)
            self.bar.update(self.num_resumed + self.num_rows + more_rows - self.bar.n)

    @property
    def speed(self) -> str:
        seconds = self._elapsed_s()
        return f"{self.num_rows / seconds:,.0f} rows/s, {self.num_tokens / seconds:,.0f} tokens/s"

    def _elapsed_s(self) -> float:
        return max(time.perf_counter() - self.started_at, 1e-9)
