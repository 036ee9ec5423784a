"""Rows of parquet files; pyarrow is needed for them and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any

from cenote.errors import BadRequest
from cenote.files.columns import Columns, Wanted, choose

READ_ROWS = 4096


def pyarrow_modules() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadRequest("parquet files need pyarrow; pip install 'cenote[parquet]'") from None
    return pyarrow, pyarrow.parquet


def read_parquet(stream: IO[bytes], wanted: Wanted) -> Iterator[tuple[Mapping[str, object], Columns]]:
    """Only the columns that are wanted, a few thousand rows at a time."""
    pyarrow, _ = pyarrow_modules()
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


def _open(stream: IO[bytes]) -> Any:
    pyarrow, parquet = pyarrow_modules()
    try:
        return parquet.ParquetFile(stream)
    except pyarrow.ArrowInvalid as error:
        raise BadRequest(f"this is no parquet file: {str(error).splitlines()[0]}") from None


def _holds_strings(kind: Any) -> bool:
    types = pyarrow_modules()[0].types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view")
