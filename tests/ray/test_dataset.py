"""Tasks on datasets, on a cluster of two nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import cenote.ray
from cenote import LLM
from tests.docs.code_blocks import read_blocks
from tests.ray.checks import check_embeddings, collect
from tests.ray.conftest import IS_FULL
from tests.ray.rows import make_rows

NUM_ROWS = 20_000 if IS_FULL else 800


@pytest.mark.usefixtures("cluster")
def test_every_row_comes_out_once_with_the_vector_of_llm_embed(default_folder: Path, llm: LLM) -> None:
    rows = make_rows(NUM_ROWS)
    dataset = ray.data.from_items(rows, override_num_blocks=16)

    done = cenote.ray.embed(dataset, model=str(default_folder), dtype="float32", concurrency=(1, 2), batch_size=256)

    check_embeddings(collect(done), rows, llm)


@pytest.mark.usefixtures("cluster")
def test_a_model_that_cannot_be_loaded_fails_the_job_with_its_reason(tmp_path: Path) -> None:
    dataset: Any = ray.data.from_items([{"text": "a"}])

    with pytest.raises(Exception, match="config.json"):
        collect(cenote.ray.embed(dataset, model=str(tmp_path), concurrency=1))


@pytest.mark.usefixtures("cluster")
def test_the_first_block_of_the_page_writes_a_vector_per_text(default_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["a cave", "a river"]}), tmp_path / "texts" / "0.parquet")
    code = read_blocks("docs/ray.md")[0].code
    for shown, here in {"s3://bucket": tmp_path, "BAAI/bge-m3": default_folder, "num_gpus=1, ": ""}.items():
        assert shown in code
        code = code.replace(shown, str(here))

    exec(code, {})

    table = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert table["id"].to_pylist() == ["a", "b"]
    assert [len(vector) for vector in table["embedding"].to_pylist()] == [384, 384]
