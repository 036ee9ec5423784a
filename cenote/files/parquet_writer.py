"""Answers in parquet files, written piece by piece."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cenote.files.parquet_input import pyarrow_modules
from cenote.files.partial_file import Part, remove
from cenote.files.result_slice import NO_ANSWERS, Answers, Floats, Layout
from cenote.files.writers import Done

# rows in one group of a file, and in one piece once there are enough of them; all of them are held in memory
GROUP_ROWS, GROUP_ROWS_OF_TOKENS = 4096, 256


class Pieces:
    """A folder FILE.part/ of pieces, each named by the number of its first row, joined into FILE at the end."""

    def __init__(self, part: Part, layout: Layout) -> None:
        self.arrow, self.parquet = pyarrow_modules()
        self.part = part
        self.layout = layout
        self.group_rows = GROUP_ROWS_OF_TOKENS if layout.kind == "tokens" else GROUP_ROWS
        self.pieces: list[Path] = []
        self.num_rows = 0
        self.num_small = 0  # pieces at the end that may become one
        self.small_rows = 0

    def resume(self) -> Done:
        num_failed = 0
        while (piece := self._piece(self.num_rows)).exists():
            try:
                errors = self.parquet.read_table(piece, columns=["error"])["error"]
            except (self.arrow.ArrowException, OSError):
                break
            if not len(errors):
                break
            num_failed += len(errors) - errors.null_count
            self.num_rows += len(errors)
            self.pieces.append(piece)
        return Done(self.num_rows, num_failed)

    def open(self) -> None:
        self.part.open(fresh=not self.pieces)
        self.part.path.mkdir(exist_ok=True)
        kept = set(self.pieces)
        for path in self.part.path.iterdir():
            if path not in kept:
                remove(path)

    def write(self, answers: Answers) -> None:
        piece = self._piece(self.num_rows)
        self._write(self._table(answers), piece)
        self.pieces.append(piece)
        self.num_rows += len(answers.rows)
        self.num_small += 1
        self.small_rows += len(answers.rows)
        if self.small_rows >= self.group_rows:
            self._join()

    def _join(self) -> None:
        """Makes one piece of the last ones, so that a long run leaves few files."""
        small = self.pieces[-self.num_small :]
        if len(small) > 1:
            tables = [self.parquet.read_table(piece) for piece in small]
            schema = self._schema([table.schema for table in tables], guess=False)
            # a run that ends between the two steps finds the joined piece, and the others are no part of the chain
            self._write(self.arrow.concat_tables([self._fitted(table, schema) for table in tables]), small[0])
            for piece in small[1:]:
                remove(piece)
            self.pieces[-self.num_small :] = small[:1]
        self.num_small = self.small_rows = 0

    def _write(self, table: Any, piece: Path) -> None:
        unfinished = piece.with_suffix(".tmp")
        self.parquet.write_table(table, unfinished)
        os.replace(unfinished, piece)

    def finish(self) -> None:
        whole = self.part.path / "whole.tmp"
        schema = self._schema([self.parquet.read_schema(piece) for piece in self.pieces])
        with self.parquet.ParquetWriter(whole, schema) as writer:
            for table in self._groups(schema):
                writer.write_table(table)
        self.part.finish(whole)

    def _groups(self, schema: Any) -> Iterator[Any]:
        """Tables of equal size, whatever the pieces were."""
        waiting: list[Any] = []
        for piece in self.pieces:
            waiting.append(self._fitted(self.parquet.read_table(piece), schema))
            while sum(map(len, waiting)) >= self.group_rows:
                table = self.arrow.concat_tables(waiting)
                yield table.slice(0, self.group_rows).combine_chunks()
                waiting = [table.slice(self.group_rows)]
        if sum(map(len, waiting)):
            yield self.arrow.concat_tables(waiting).combine_chunks()

    def close(self) -> None:
        self.part.close()

    def _piece(self, first_row: int) -> Path:
        return self.part.path / f"{first_row:012d}.parquet"

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
        rows = pa.array(answers.offsets.astype(np.int32))
        if self.layout.kind == "sparse":
            ids, weights = np.ascontiguousarray(answers.values.T)
            lists = [pa.ListArray.from_arrays(rows, pa.array(part)) for part in (ids.astype(np.int32), weights)]
            return self._spread(pa.StructArray.from_arrays(lists, ["token_ids", "weights"]), answers)
        if answers.values.ndim == 1:  # one number for every token
            return self._spread(pa.ListArray.from_arrays(rows, pa.array(answers.values)), answers)
        width = answers.values.shape[1]
        if self.layout.kind == "vector":
            block = np.full((len(answers.rows), width), np.nan, dtype=np.float32)
            block[answers.worked] = answers.values
            return self._vectors(block)
        numbers = pa.array(np.ascontiguousarray(answers.values).reshape(-1), pa.float32())
        if self.layout.kind == "number":
            return self._spread(numbers, answers)
        tokens = pa.array(np.arange(len(answers.values) + 1, dtype=np.int32) * width)
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

    def _schema(self, found: list[Any], *, guess: bool = True) -> Any:
        """Every column with the type that its pieces agree on; ids that do not agree become strings.

        A column of which no piece knows the type stays so, unless its type is to be guessed.
        """
        pa = self.arrow
        unknown = pa.list_(pa.float32()) if self.layout.kind == "vector" else pa.list_(pa.list_(pa.float32()))
        if self.layout.kind == "sparse":
            unknown = pa.struct({"token_ids": pa.list_(pa.int32()), "weights": pa.list_(pa.float32())})
        found = found or [self._table(NO_ANSWERS).schema]
        fields = []
        for name in found[0].names:
            types = list(dict.fromkeys(schema.field(name).type for schema in found))
            types = [kind for kind in types if kind != pa.null()]
            fallback = unknown if name == self.layout.name else pa.string()
            if not types and not guess:
                fallback = pa.null()
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
