"""Parquet in and out; the only file that needs pyarrow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from cenote.cli.answers import NO_ANSWERS, Answers, Layout
from cenote.cli.columns import Columns, Wanted, choose
from cenote.cli.numbers import Floats
from cenote.cli.outputs import Done
from cenote.cli.part import Part, remove
from cenote.errors import BadRequest

READ_ROWS = 4096


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadRequest("parquet files need pyarrow; pip install 'cenote[parquet]'") from None
    return pyarrow, pyarrow.parquet


def read_parquet(stream: IO[bytes], wanted: Wanted) -> Iterator[tuple[Mapping[str, object], Columns]]:
    """Only the columns that are wanted, a few thousand rows at a time."""
    pyarrow, _ = _pyarrow()
    file = _open(stream)
    schema = file.schema_arrow
    strings = [column.name for column in schema if _holds_strings(column.type)]
    columns = choose(wanted, schema.names, strings)
    names = list(dict.fromkeys((*columns.texts, *([columns.id] if columns.id else []))))
    try:
        for batch in file.iter_batches(batch_size=READ_ROWS, columns=names):
            for record in batch.to_pylist():
                yield record, columns
    except pyarrow.ArrowException as error:
        raise BadRequest(f"the parquet file is damaged: {str(error).splitlines()[0]}") from None


def count_rows(stream: IO[bytes]) -> int:
    return int(_open(stream).metadata.num_rows)


class Pieces:
    """A folder FILE.part/ with one numbered piece per slice, joined into FILE at the end."""

    def __init__(self, part: Part, layout: Layout) -> None:
        self.arrow, self.parquet = _pyarrow()
        self.part = part
        self.layout = layout
        self.num_pieces = 0

    def resume(self, slice_rows: int) -> Done:
        num_failed = 0
        while self._piece(self.num_pieces).exists():
            try:
                errors = self.parquet.read_table(self._piece(self.num_pieces), columns=["error"])["error"]
            except (self.arrow.ArrowException, OSError):
                break
            if len(errors) != slice_rows:
                break
            num_failed += len(errors) - errors.null_count
            self.num_pieces += 1
        return Done(self.num_pieces * slice_rows, num_failed)

    def open(self) -> None:
        self.part.open(fresh=self.num_pieces == 0)
        self.part.path.mkdir(exist_ok=True)
        kept = {self._piece(number) for number in range(self.num_pieces)}
        for path in self.part.path.iterdir():
            if path not in kept:
                remove(path)

    def write(self, answers: Answers) -> None:
        piece = self._piece(self.num_pieces)
        unfinished = piece.with_suffix(".tmp")
        self.parquet.write_table(self._table(answers), unfinished)
        os.replace(unfinished, piece)
        self.num_pieces += 1

    def finish(self) -> None:
        whole = self.part.path / "whole.tmp"
        pieces = [self._piece(number) for number in range(self.num_pieces)]
        schema = self._schema([self.parquet.read_schema(piece) for piece in pieces])
        with self.parquet.ParquetWriter(whole, schema) as writer:
            for piece in pieces:
                writer.write_table(self._fitted(self.parquet.read_table(piece), schema))
        self.part.finish(whole)

    def close(self) -> None:
        self.part.close()

    def _piece(self, number: int) -> Path:
        return self.part.path / f"{number:06d}.parquet"

    def _table(self, answers: Answers) -> Any:
        pa = self.arrow
        columns = {"index": pa.array([row.index for row in answers.rows], pa.int64())}
        if self.layout.has_ids:
            columns["id"] = self._ids([row.id for row in answers.rows])
        if self.layout.has_labels:
            columns["label"] = self._spread(pa.array(answers.labels, pa.string()), answers)
        columns[self.layout.name] = self._values(answers)
        columns["num_tokens"] = self._spread(pa.array(answers.num_tokens, pa.int32()), answers)
        columns["error"] = pa.array([row.error for row in answers.rows], pa.string())
        return pa.table(columns)

    def _values(self, answers: Answers) -> Any:
        pa = self.arrow
        if not answers.worked and self.layout.kind != "number":
            return pa.nulls(len(answers.rows))  # the width is not known here; another piece will tell
        width = answers.values.shape[1]
        if self.layout.kind == "vector":
            block = np.full((len(answers.rows), width), np.nan, dtype=np.float32)
            block[answers.worked] = answers.values
            return self._vectors(block)
        numbers = pa.array(np.ascontiguousarray(answers.values).reshape(-1), pa.float32())
        if self.layout.kind == "number":
            return self._spread(numbers, answers)
        tokens = pa.array(np.arange(len(answers.values) + 1, dtype=np.int32) * width)
        rows = pa.array(answers.offsets.astype(np.int32))
        return self._spread(pa.ListArray.from_arrays(rows, pa.ListArray.from_arrays(tokens, numbers)), answers)

    def _vectors(self, block: Floats) -> Any:
        # a failed row is NaN, as in a matrix: pyarrow 15 cannot write null among vectors
        return self.arrow.FixedSizeListArray.from_arrays(self.arrow.array(block.reshape(-1)), block.shape[1])

    def _spread(self, column: Any, answers: Answers) -> Any:
        """What is known of the rows that worked, with null for the others between them."""
        if not answers.num_failed:
            return column
        ranks: list[int | None] = [None] * len(answers.rows)
        for rank, place in enumerate(answers.worked):
            ranks[place] = rank
        return column.take(self.arrow.array(ranks, self.arrow.int64()))

    def _ids(self, ids: list[Any]) -> Any:
        ids = [json.dumps(value) if isinstance(value, dict | list) else value for value in ids]
        try:
            return self.arrow.array(ids)
        except (self.arrow.ArrowException, OverflowError):  # mixed types
            return self.arrow.array([None if value is None else str(value) for value in ids], self.arrow.string())

    def _schema(self, found: list[Any]) -> Any:
        """Every column with the type that its pieces agree on; ids that do not agree become strings."""
        pa = self.arrow
        unknown = pa.list_(pa.float32()) if self.layout.kind == "vector" else pa.list_(pa.list_(pa.float32()))
        found = found or [self._table(NO_ANSWERS).schema]
        fields = []
        for name in found[0].names:
            types = list(dict.fromkeys(schema.field(name).type for schema in found))
            types = [kind for kind in types if kind != pa.null()]
            fallback = unknown if name == self.layout.name else pa.string()
            fields.append(pa.field(name, types[0] if len(types) == 1 else fallback))
        return pa.schema(fields)

    def _fitted(self, table: Any, schema: Any) -> Any:
        return self.arrow.table([self._cast(table[field.name], field.type) for field in schema], schema=schema)

    def _cast(self, column: Any, kind: Any) -> Any:
        if column.type == self.arrow.null():
            if self.arrow.types.is_fixed_size_list(kind):
                return self._vectors(np.full((len(column), kind.list_size), np.nan, dtype=np.float32))
            return self.arrow.nulls(len(column), kind)
        return column if column.type == kind else column.cast(kind)


def _open(stream: IO[bytes]) -> Any:
    pyarrow, parquet = _pyarrow()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowInvalid as error:
        raise BadRequest(f"this is no parquet file: {str(error).splitlines()[0]}") from None


def _holds_strings(kind: Any) -> bool:
    types = _pyarrow()[0].types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")
