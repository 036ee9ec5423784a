"""What the tests of jobs check: every row once, with the vectors of LLM.embed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cenote import LLM
from tests.ray.rows import texts_of


def check_embeddings(table: Any, rows: list[dict[str, Any]], llm: LLM) -> None:
    """`table` has the columns id, embedding and error, in any order of rows."""
    table = table.sort_by("id")
    assert table["id"].to_pylist() == [row["id"] for row in rows]
    texts = texts_of(rows)
    assert {row["id"] for row in table.select(["id", "error"]).to_pylist() if row["error"] is None} == set(texts)
    failed = [row["error"] for row in table.select(["error"]).to_pylist() if row["error"] is not None]
    assert all("null" in error for error in failed)
    outputs = llm.embed(list(texts.values()), use_tqdm=False)
    expected = np.stack([output.outputs.data.numpy() for output in outputs])
    vectors = table["embedding"].combine_chunks().drop_null()
    found = np.asarray(vectors.flatten(), dtype=np.float32).reshape(len(expected), -1)
    assert np.array_equal(found, expected)


def collect(dataset: Any) -> Any:
    return pa.concat_tables(list(dataset.iter_batches(batch_format="pyarrow", batch_size=None)))
