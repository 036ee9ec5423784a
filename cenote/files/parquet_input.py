"""Read parquet files with pyarrow, an optional dependency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions, Columns, choose_columns
from cenote.utils.install_commands import install_command

BATCH_ROWS = 4096


def import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadRequest(f"parquet files need pyarrow: {install_command('parquet')}") from None
    return pyarrow, pyarrow.parquet


def read_parquet(
    stream: IO[bytes], column_options: ColumnOptions, row_groups: Sequence[int] | None = None
) -> Iterator[tuple[Mapping[str, object], Columns]]:
    """Read the selected columns in batches; `row_groups`: None for all."""
    pyarrow, _ = import_pyarrow()
    file = _open_parquet(stream)
    schema = file.schema_arrow
    strings = [column.name for column in schema if _is_string_type(column.type)]
    columns = choose_columns(column_options, schema.names, strings)
    names = list(dict.fromkeys((*columns.texts, *([columns.id] if columns.id else []))))
    try:
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names, row_groups=row_groups):
            for record in batch.to_pylist():
                yield record, columns
    except pyarrow.ArrowException as error:
        raise BadRequest(f"the parquet file is corrupted: {str(error).splitlines()[0]}") from None


def count_rows(stream: IO[bytes]) -> int:
    return int(_open_parquet(stream).metadata.num_rows)


def row_group_sizes(stream: IO[bytes]) -> list[int]:
    """Return the number of rows of each row group."""
    metadata = _open_parquet(stream).metadata
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def _open_parquet(stream: IO[bytes]) -> Any:
    pyarrow, parquet = import_pyarrow()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowInvalid as error:
        raise BadRequest(f"not a parquet file: {str(error).splitlines()[0]}") from None


def _is_string_type(kind: Any) -> bool:
    types = import_pyarrow()[0].types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")
