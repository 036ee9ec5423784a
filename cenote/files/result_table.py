"""Results as Arrow arrays and tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from cenote.files.parquet_input import import_pyarrow
from cenote.files.result_slice import Floats, ResultSchema, ResultSlice, entity_values


def make_table(results: ResultSlice, schema: ResultSchema) -> Any:
    """Return the table that is written to a parquet file."""
    pa, _ = import_pyarrow()
    columns = {"index": pa.array([row.index for row in results.rows], pa.int64())}
    if schema.has_ids:
        columns["id"] = make_id_array([row.id for row in results.rows])
    return pa.table({**columns, **make_columns(results, schema)})


def make_columns(results: ResultSlice, schema: ResultSchema) -> dict[str, Any]:
    """Return the columns of the results by name; `error` is null where a row succeeded."""
    pa, _ = import_pyarrow()
    columns = {}
    if schema.has_labels:
        columns["label"] = align_to_rows(pa.array(results.labels, pa.string()), results)
    if (chunk_size := schema.chunk_size) is not None:
        chunks = [results.get_chunk_offsets(rank, chunk_size) for rank in range(len(results.ok_positions))]
        kind = pa.list_(pa.list_(pa.int64()))
        columns["chunks"] = align_to_rows(pa.array([list(map(list, row)) for row in chunks], kind), results)
    if schema.kind == "entities":
        truncated = [result.truncated for result in results.entities]
        columns["truncated"] = align_to_rows(pa.array(truncated, pa.bool_()), results)
    columns[schema.name] = make_value_array(results, schema)
    columns["num_tokens"] = align_to_rows(pa.array(results.num_tokens, pa.int32()), results)
    columns["error"] = pa.array([row.error for row in results.rows], pa.string())
    return columns


def make_value_array(results: ResultSlice, schema: ResultSchema) -> Any:
    pa, _ = import_pyarrow()
    if schema.kind == "entities":
        return make_entity_array(results)
    if not results.ok_positions and schema.kind != "number":
        return pa.nulls(len(results.rows))  # the width is not known in this slice
    rows = pa.array(results.offsets.astype(np.int32))
    if schema.kind == "sparse":
        ids, weights = np.ascontiguousarray(results.values.T)
        lists = [pa.ListArray.from_arrays(rows, pa.array(part)) for part in (ids.astype(np.int32), weights)]
        return align_to_rows(pa.StructArray.from_arrays(lists, ["token_ids", "weights"]), results)
    if results.values.ndim == 1:  # one value per token
        return align_to_rows(pa.ListArray.from_arrays(rows, pa.array(results.values)), results)
    width = results.values.shape[1]
    if schema.kind == "vector":
        block = np.full((len(results.rows), width), np.nan, dtype=np.float32)
        block[results.ok_positions] = results.values
        return make_vector_array(block)
    numbers = pa.array(np.ascontiguousarray(results.values).reshape(-1), pa.float32())
    if schema.kind == "number":
        return align_to_rows(numbers, results)
    tokens = pa.array(np.arange(len(results.values) + 1, dtype=np.int32) * width)
    return align_to_rows(pa.ListArray.from_arrays(rows, pa.ListArray.from_arrays(tokens, numbers)), results)


def make_entity_array(results: ResultSlice) -> Any:
    pa, _ = import_pyarrow()
    fields = {"label": pa.string(), "score": pa.float32(), "start": pa.int64(), "end": pa.int64(), "text": pa.string()}
    rows = [[entity_values(entity) for entity in result.entities] for result in results.entities]
    return align_to_rows(pa.array(rows, pa.list_(pa.struct(fields))), results)


def make_vector_array(block: Floats) -> Any:
    # a failed row is NaN, as in .npy files: pyarrow 15 cannot write null in fixed-size lists
    pa, _ = import_pyarrow()
    return pa.FixedSizeListArray.from_arrays(pa.array(block.reshape(-1)), block.shape[1])


def align_to_rows(column: Any, results: ResultSlice) -> Any:
    """Return values of the successful rows with null for the failed ones."""
    if not results.num_failed:
        return column
    ranks: list[int | None] = [None] * len(results.rows)
    for rank, position in enumerate(results.ok_positions):
        ranks[position] = rank
    pa, _ = import_pyarrow()
    return column.take(pa.array(ranks, pa.int64()))


def make_id_array(ids: Sequence[Any]) -> Any:
    pa, _ = import_pyarrow()
    ids = [json.dumps(value) if isinstance(value, dict | list) else value for value in ids]
    try:
        return pa.array(ids)
    except (pa.ArrowException, OverflowError):  # mixed types
        return pa.array([None if value is None else str(value) for value in ids], pa.string())
