"""Answers in parquet files, written piece by piece."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from cenote.files.answers import NO_ANSWERS, Answers, Floats, Layout
from cenote.files.outputs import Done
from cenote.files.parquet_input import pyarrow_modules
from cenote.files.part import Part, remove


class Pieces:
    """A folder FILE.part/ with one numbered piece per slice, joined into FILE at the end."""

    def __init__(self, part: Part, layout: Layout) -> None:
        self.arrow, self.parquet = pyarrow_modules()
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

    def _schema(self, found: list[Any]) -> Any:
        """Every column with the type that its pieces agree on; ids that do not agree become strings."""
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
