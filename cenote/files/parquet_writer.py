"""Write results to parquet files in slices that can be resumed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cenote.files.parquet_input import import_pyarrow
from cenote.files.partial_file import PartialFile, remove_path
from cenote.files.result_slice import EMPTY_SLICE, ResultSchema, ResultSlice
from cenote.files.result_table import make_table, make_vector_array
from cenote.files.writers import ResumePoint, Writer
from cenote.utils.durable_files import replace_durably

# rows per row group, and per slice after merging; a row group is held in memory
GROUP_ROWS, GROUP_ROWS_OF_TOKENS = 4096, 256


class ParquetWriter(Writer):
    """Write slices into the folder FILE.part/, each named by its first row, and merge them into FILE at the end."""

    def __init__(self, partial_file: PartialFile, schema: ResultSchema) -> None:
        self.arrow, self.parquet = import_pyarrow()
        self.partial_file = partial_file
        self.schema = schema
        self.group_rows = GROUP_ROWS_OF_TOKENS if schema.kind == "tokens" else GROUP_ROWS
        self.slice_paths: list[Path] = []
        self.num_rows = 0
        self.num_small_slices = 0  # trailing slices that are not merged yet
        self.small_rows = 0

    def resume(self) -> ResumePoint:
        num_failed = 0
        while (slice_path := self._slice_path(self.num_rows)).exists():
            try:
                errors = self.parquet.read_table(slice_path, columns=["error"])["error"]
            except (self.arrow.ArrowException, OSError):
                break
            if not len(errors):
                break
            num_failed += len(errors) - errors.null_count
            self.num_rows += len(errors)
            self.slice_paths.append(slice_path)
        return ResumePoint(self.num_rows, num_failed)

    def open(self) -> None:
        self.partial_file.open(fresh=not self.slice_paths)
        self.partial_file.path.mkdir(exist_ok=True)
        kept = set(self.slice_paths)
        for path in self.partial_file.path.iterdir():
            if path not in kept:
                remove_path(path)

    def write(self, results: ResultSlice) -> None:
        slice_path = self._slice_path(self.num_rows)
        self._write_slice(make_table(results, self.schema), slice_path)
        self.slice_paths.append(slice_path)
        self.num_rows += len(results.rows)
        self.num_small_slices += 1
        self.small_rows += len(results.rows)
        if self.small_rows >= self.group_rows:
            self._merge_small_slices()

    def _merge_small_slices(self) -> None:
        """Merge the trailing slices into one, so that a long run has few files."""
        small = self.slice_paths[-self.num_small_slices :]
        if len(small) > 1:
            tables = [self.parquet.read_table(slice_path) for slice_path in small]
            schema = self._merge_schemas([table.schema for table in tables], guess=False)
            # after an interrupt between the two steps, resume() finds the merged slice and ignores the others
            self._write_slice(self.arrow.concat_tables([self._cast_table(table, schema) for table in tables]), small[0])
            for slice_path in small[1:]:
                remove_path(slice_path)
            self.slice_paths[-self.num_small_slices :] = small[:1]
        self.num_small_slices = self.small_rows = 0

    def _write_slice(self, table: Any, slice_path: Path) -> None:
        unfinished = slice_path.with_suffix(".tmp")
        self.parquet.write_table(table, unfinished)
        replace_durably(unfinished, slice_path)

    def finish(self) -> None:
        whole = self.partial_file.path / "whole.tmp"
        schema = self._merge_schemas([self.parquet.read_schema(slice_path) for slice_path in self.slice_paths])
        with self.parquet.ParquetWriter(whole, schema) as writer:
            for table in self._iter_row_groups(schema):
                writer.write_table(table)
        self.partial_file.finish(whole)

    def _iter_row_groups(self, schema: Any) -> Iterator[Any]:
        """Yield tables of equal size, independent of the slices."""
        waiting: list[Any] = []
        for slice_path in self.slice_paths:
            waiting.append(self._cast_table(self.parquet.read_table(slice_path), schema))
            while sum(map(len, waiting)) >= self.group_rows:
                table = self.arrow.concat_tables(waiting)
                yield table.slice(0, self.group_rows).combine_chunks()
                waiting = [table.slice(self.group_rows)]
        if sum(map(len, waiting)):
            yield self.arrow.concat_tables(waiting).combine_chunks()

    def close(self) -> None:
        self.partial_file.close()

    def _slice_path(self, first_row: int) -> Path:
        return self.partial_file.path / f"{first_row:012d}.parquet"

    def _merge_schemas(self, found: list[Any], *, guess: bool = True) -> Any:
        """Return a schema for all slices; ids of different types become strings.

        A column of which no slice_path knows the type stays so, unless its type is to be guessed.
        """
        pa = self.arrow
        unknown = pa.list_(pa.float32()) if self.schema.kind == "vector" else pa.list_(pa.list_(pa.float32()))
        if self.schema.kind == "sparse":
            unknown = pa.struct({"token_ids": pa.list_(pa.int32()), "weights": pa.list_(pa.float32())})
        found = found or [make_table(EMPTY_SLICE, self.schema).schema]
        fields = []
        for name in found[0].names:
            types = list(dict.fromkeys(schema.field(name).type for schema in found))
            types = [kind for kind in types if kind != pa.null()]
            fallback = unknown if name == self.schema.name else pa.string()
            if not types and not guess:
                fallback = pa.null()
            fields.append(pa.field(name, types[0] if len(types) == 1 else fallback))
        return pa.schema(fields)

    def _cast_table(self, table: Any, schema: Any) -> Any:
        return self.arrow.table([self._cast_column(table[field.name], field.type) for field in schema], schema=schema)

    def _cast_column(self, column: Any, kind: Any) -> Any:
        if column.type == self.arrow.null():
            if self.arrow.types.is_fixed_size_list(kind):
                return make_vector_array(np.full((len(column), kind.list_size), np.nan, dtype=np.float32))
            return self.arrow.nulls(len(column), kind)
        return column if column.type == kind else column.cast(kind)
