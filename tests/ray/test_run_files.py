"""Jobs on files: parts that are done are not done again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

import cenote.ray
from cenote import LLM
from cenote.config.ray import RayConfig
from cenote.errors import BadRequest
from cenote.ray import PartSummary
from tests.ray.checks import check_embeddings
from tests.ray.rows import make_rows

ONE_REPLICA, TWO_REPLICAS = (RayConfig(engine="ray", max_replicas=number) for number in (1, 2))
ROWS = make_rows(600)


class StopHere(Exception):
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files with rows, and an empty one."""
    inputs = tmp_path / "in"
    inputs.mkdir()
    for name, rows in {"a": ROWS[:350], "b": [], "c": ROWS[350:]}.items():
        (inputs / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return inputs


@pytest.mark.usefixtures("cluster")
def test_the_parts_of_a_job_become_a_lance_dataset(folder: Path, default_folder: Path, llm: LLM) -> None:
    lance = pytest.importorskip("lance")
    output = folder.parent / "out"
    options: dict[str, Any] = {"model": str(default_folder), "dtype": "float32", "id_column": "id", "format": "lance"}

    summary = cenote.ray.run_files(str(folder), str(output), part_rows=200, ray_config=ONE_REPLICA, **options)

    assert summary.num_parts == 4
    check_embeddings(lance.dataset(str(output)).to_table(), ROWS, llm)


@pytest.mark.usefixtures("cluster")
def test_an_interrupted_job_continues_with_the_parts_that_are_missing(
    folder: Path, default_folder: Path, llm: LLM
) -> None:
    options: dict[str, Any] = {"model": str(default_folder), "dtype": "float32", "id_column": "id", "part_rows": 50}
    output = folder.parent / "out"
    num_done = 0

    def stop_after_three(summary: PartSummary) -> None:
        nonlocal num_done
        num_done += 1
        if num_done == 3:
            raise StopHere

    with pytest.raises(StopHere):
        cenote.ray.run_files(str(folder), str(output), ray_config=TWO_REPLICAS, on_part=stop_after_three, **options)
    kept = {path: path.stat().st_mtime_ns for path in output.glob("part-*")}
    assert 3 <= len(kept) < 12

    summary = cenote.ray.run_files(str(folder), str(output), ray_config=ONE_REPLICA, **options)

    assert summary.num_parts == 12
    assert summary.num_resumed >= len(kept)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    table = pyarrow.parquet.read_table(output)
    check_embeddings(table, ROWS, llm)
    assert set(table["file"].to_pylist()) == {"a.jsonl", "c.jsonl"}
    again = cenote.ray.run_files(str(folder), str(output), ray_config=ONE_REPLICA, **options)
    assert (again.num_resumed, again.num_rows) == (12, 0)
    with pytest.raises(BadRequest, match="another job .*dtype was .float32., now null"):
        cenote.ray.run_files(str(folder), str(output), ray_config=ONE_REPLICA, **{**options, "dtype": None})


def test_a_folder_with_other_files_is_not_touched(folder: Path) -> None:
    output = folder.parent / "photos"
    output.mkdir()
    (output / "photo.jpg").write_text("x")

    for overwrite in (False, True):
        with pytest.raises(BadRequest, match="photos"):
            cenote.ray.run_files(str(folder), str(output), overwrite=overwrite)
    assert os.listdir(output) == ["photo.jpg"]
