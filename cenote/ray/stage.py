"""CenoteStage: a callable class for `Dataset.map_batches` that keeps a model loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.errors import BadRequest, PoolingError
from cenote.files.parquet_input import import_pyarrow
from cenote.files.result_slice import ResultSlice, collect_results
from cenote.files.result_table import make_columns
from cenote.files.sources import InputRow
from cenote.kernels.cpu.threads import set_num_threads
from cenote.protocol.results import EntityResult
from cenote.ray.row_task import SCHEMAS, RankResult, RowTask

if TYPE_CHECKING:
    from cenote.llm import LLM

CHARS_PER_TOKEN = 3
TOKENS_PER_ROW, TOKENS_PER_IMAGE = 8, 1024  # special tokens; an image of usual size
BATCH_TOKENS, BATCH_TOKENS_OF_TOKEN_TASKS = 128 * 1024, 32 * 1024  # results of all tokens of a slice are in memory


def load_llm(engine_options: Mapping[str, Any], threads: int | None) -> LLM:
    """Load the model in this process, with so many threads."""
    set_threads(threads)
    from cenote.llm import LLM

    return LLM(**engine_options)


def set_threads(threads: int | None) -> None:
    """Compute with so many threads in this process; None: the default."""
    if threads is None:
        return
    # OpenMP and torch read the first when they start; threads that spin take cores from the other actors of the node
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    set_num_threads(threads)


class CenoteStage:
    """Add the results of a task to the rows of a batch, an Arrow table: as many rows out as in.

    Rows with null and rows that fail have null results and the reason in the column `error`.
    """

    def __init__(
        self,
        task: str = "embed",
        *,
        columns: Sequence[str] = ("text",),
        image_column: str | None = None,
        suffix: str = "",
        batch_tokens: int | None = None,
        threads: int | None = None,
        engine_options: Mapping[str, Any] | None = None,
        task_options: Mapping[str, Any] | None = None,
    ) -> None:
        """`columns`: of the texts; of pairs, query and document. `suffix`: appended to the names of new columns.

        `batch_tokens`: estimated tokens that the engine gets at once. `threads`: of the engine, on a CPU.
        """
        self.row_task = RowTask(task, task_options or {})
        check_columns(self.row_task, columns, image_column)
        self.columns, self.image_column, self.suffix = tuple(columns), image_column, suffix
        is_by_token = task in ("token_embed", "token_classify")
        self.batch_tokens = batch_tokens or (BATCH_TOKENS_OF_TOKEN_TASKS if is_by_token else BATCH_TOKENS)
        self.llm = load_llm(engine_options or {}, threads)
        self.row_task.check(self.llm)
        self._value_type: Any = None  # of the result column, known after the first row that succeeds

    def __call__(self, table: Any) -> Iterator[Any]:
        """Yield a table for each slice of the rows, in order."""
        new_names = [name + self.suffix for name in (*self._result_names(), "num_tokens", "error")]
        if taken := [name for name in new_names if name in table.column_names]:
            raise BadRequest(f"the dataset has a column {taken[0]!r} already; rename it, or set suffix, such as '_2'")
        rows = self._read_rows(table)
        slices = list(split_by_tokens(rows, self.batch_tokens))
        position = 0
        with ThreadPoolExecutor(1) as background:  # the engine computes while the slice before is converted
            pending = [background.submit(self._run, some) for some in slices[:2]]
            for number, some in enumerate(slices):
                results = pending.pop(0).result()
                if number + 2 < len(slices):
                    pending.append(background.submit(self._run, slices[number + 2]))
                yield self._append(table.slice(position, len(some)), some, results)
                position += len(some)
        if not slices:
            yield self._append(table, [], [])

    def _run(self, rows: list[InputRow]) -> list[Any]:
        return self.row_task.run(self.llm, [row.texts for row in rows if row.error is None])

    def _read_rows(self, table: Any) -> list[InputRow]:
        names = [*self.columns, *([self.image_column] if self.image_column else [])]
        for name in names:
            if name not in table.column_names:
                raise BadRequest(f"unknown column {name!r}; available: {', '.join(table.column_names)}")
        values = [table[name].to_pylist() for name in names]
        return [self._make_row(index, record, names) for index, record in enumerate(zip(*values, strict=True))]

    def _make_row(self, index: int, record: tuple[Any, ...], names: Sequence[str]) -> InputRow:
        for name, value in zip(names, record, strict=True):
            if value is None:
                return InputRow(index, error=f"column {name!r} holds null")
        if self.row_task.task == "rerank" and (error := _check_documents(record[1], names[1])):
            return InputRow(index, error=error)
        if self.image_column is None:
            return InputRow(index, record)
        text = record[0] if self.columns else ""
        prompt: Any = {"prompt": text, "multi_modal_data": {"image": record[-1]}}
        return InputRow(index, (prompt,))

    def _append(self, table: Any, rows: list[InputRow], results: list[Any]) -> Any:
        schema = SCHEMAS.get(self.row_task.task)
        if schema is None:
            columns = _object_columns(self.row_task.task, rows, results)
        else:
            columns = self.make_columns(self.collect(rows, results))
        for name, column in columns.items():
            table = table.append_column(name + self.suffix, column)
        return table

    def collect(self, rows: list[InputRow], results: list[Any]) -> ResultSlice:
        schema = SCHEMAS[self.row_task.task]
        return collect_results(rows, results, schema, self.llm.labels if schema.has_labels else None)

    def make_columns(self, results: ResultSlice) -> dict[str, Any]:
        schema = SCHEMAS[self.row_task.task]
        columns = make_columns(results, schema)
        return {**columns, schema.name: self._typed(columns[schema.name], results)}

    def run(self, rows: list[InputRow]) -> list[Any]:
        """Return the results of the rows that have no error yet."""
        return [result for some in split_by_tokens(rows, self.batch_tokens) for result in self._run(some)]

    def _typed(self, column: Any, results: ResultSlice) -> Any:
        """Return the column with null for failed rows, and the same type in every block."""
        pa, _ = import_pyarrow()
        if results.ok_positions:
            self._value_type = column.type
        if self._value_type is None:
            self._value_type = self._probe_type()
        if not results.ok_positions:
            return pa.nulls(len(column), self._value_type)
        if results.num_failed and pa.types.is_fixed_size_list(column.type):
            failed = np.ones(len(column), dtype=bool)
            failed[results.ok_positions] = False
            return pa.FixedSizeListArray.from_arrays(column.values, column.type.list_size, mask=pa.array(failed))
        return column

    def _probe_type(self) -> Any:
        """Return the type of the result of any text; needed if the first batch has no row that succeeds."""
        pa, _ = import_pyarrow()
        schema = SCHEMAS[self.row_task.task]
        probe = [InputRow(0, ("a",) * self.row_task.num_columns)]
        results = self.collect(probe, self._run(probe))
        column = make_columns(results, schema)[schema.name]
        return column.type if results.ok_positions else pa.list_(pa.float32())

    def _result_names(self) -> list[str]:
        schema = SCHEMAS.get(self.row_task.task)
        if schema is None:
            return [OBJECT_COLUMNS[self.row_task.task]]
        return [*(["label"] if schema.has_labels else []), schema.name]


OBJECT_COLUMNS = {"entities": "entities", "rerank": "ranking"}
# with their types in Arrow
ENTITY_FIELDS = {
    **dict.fromkeys(("label", "score", "word", "start", "end", "text"), "string"),
    **{"score": "float32", "start": "int32", "end": "int32"},
}


def check_columns(task: RowTask, columns: Sequence[str], image_column: str | None) -> None:
    """Raise if the number of columns does not fit the task."""
    if image_column is not None and task.task in ("score", "rerank", "entities"):
        raise BadRequest(f"the task {task.task} takes no image_column; use a column of objects with `content`")
    expected = task.num_columns
    if len(columns) != expected and not (image_column is not None and not columns):
        raise BadRequest(f"the task {task.task} reads {expected} columns, got {len(columns)}: {', '.join(columns)}")


def split_by_tokens(rows: Sequence[InputRow], max_tokens: int) -> Iterator[list[InputRow]]:
    """Split rows into slices of at most so many estimated tokens; a longer row is a slice of its own.

    The estimate depends on the rows only: a batch that is computed again is split in the same way.
    """
    taken: list[InputRow] = []
    num_tokens = 0
    for row in rows:
        cost = sum(map(estimate_tokens, row.texts)) + TOKENS_PER_ROW
        if taken and num_tokens + cost > max_tokens:
            yield taken
            taken, num_tokens = [], 0
        taken.append(row)
        num_tokens += cost
    if taken:
        yield taken


def estimate_tokens(prompt: Any) -> int:
    if isinstance(prompt, str):
        return len(prompt) // CHARS_PER_TOKEN
    if isinstance(prompt, Mapping):
        return TOKENS_PER_IMAGE * ("multi_modal_data" in prompt) + sum(
            map(estimate_tokens, (value for value in prompt.values() if isinstance(value, str | list)))
        )
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return sum(map(estimate_tokens, prompt))
    return len(prompt) if isinstance(prompt, list) else 1


def _check_documents(value: Any, name: str) -> str | None:
    if not isinstance(value, list):
        return f"column {name!r} holds {type(value).__name__}, not a list of documents"
    for position, item in enumerate(value):
        if item is None:
            return f"column {name!r}: document {position} is null"
    return None


def _object_columns(task: str, rows: list[InputRow], results: list[Any]) -> dict[str, Any]:
    """Return the columns of results that are lists of objects."""
    pa, _ = import_pyarrow()
    values: list[Any] = [None] * len(rows)
    num_tokens: list[int | None] = [None] * len(rows)
    valid = [position for position, row in enumerate(rows) if row.error is None]
    for position, result in zip(valid, results, strict=True):
        if isinstance(result, PoolingError):
            rows[position].error = "; ".join([str(result), *getattr(result, "__notes__", [])])
            continue
        num_tokens[position] = result.num_tokens
        if isinstance(result, RankResult):
            values[position] = [{"index": index, "relevance_score": score} for index, score in result.ranking]
        elif isinstance(result, EntityResult):
            values[position] = [{name: getattr(entity, name) for name in ENTITY_FIELDS} for entity in result.entities]
    fields = {"index": "int32", "relevance_score": "float32"} if task == "rerank" else ENTITY_FIELDS
    item = pa.struct({name: getattr(pa, kind)() for name, kind in fields.items()})
    return {
        OBJECT_COLUMNS[task]: pa.array(values, pa.list_(item)),
        "num_tokens": pa.array(num_tokens, pa.int32()),
        "error": pa.array([row.error for row in rows], pa.string()),
    }
