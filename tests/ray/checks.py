"""What the tests of jobs check: every row once, with the vectors of LLM.embed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cenote import LLM
from tests.ray.rows import texts_of

EXPECTED: dict[str, Any] = {}  # of the session's LLM


def check_embeddings(table: Any, rows: list[dict[str, Any]], llm: LLM) -> None:
    """`table` has the columns id, embedding and error, in any order of rows."""
    table = table.sort_by("id")
    assert table["id"].to_pylist() == [row["id"] for row in rows]
    texts = texts_of(rows)
    assert {row["id"] for row in table.select(["id", "error"]).to_pylist() if row["error"] is None} == set(texts)
    failed = [row["error"] for row in table.select(["error"]).to_pylist() if row["error"] is not None]
    assert all("null" in error for error in failed)
    expected = np.stack(embed_once(llm, list(texts.values())))
    vectors = table["embedding"].combine_chunks().drop_null()
    found = np.asarray(vectors.flatten(), dtype=np.float32).reshape(len(expected), -1)
    assert np.array_equal(found, expected)


def embed_once(llm: LLM, texts: list[str]) -> list[Any]:
    """Return the vectors of LLM.embed; tests with the same rows share them."""
    missing = [text for text in texts if text not in EXPECTED]
    outputs = llm.embed(missing, use_tqdm=False) if missing else []
    EXPECTED.update({text: output.outputs.data.numpy() for text, output in zip(missing, outputs, strict=True)})
    return [EXPECTED[text] for text in texts]


def collect(dataset: Any) -> Any:
    return pa.concat_tables(list(dataset.iter_batches(batch_format="pyarrow", batch_size=None)))
