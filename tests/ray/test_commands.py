"""`cenote embed --engine ray` writes what `cenote embed` writes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from cenote.cli.main import main
from tests.ray.rows import make_rows


@pytest.mark.usefixtures("cluster")
def test_the_same_command_runs_on_the_cluster(tmp_path: Path, default_folder: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in make_rows(300)) + "not json\n")
    command = ["embed", "--model", str(default_folder), "--input", str(source), "--id-column", "id", "--quiet"]

    assert main([*command, "--output", str(tmp_path / "local.jsonl")]) == 1  # some rows have no text
    assert main([*command, "--output", str(tmp_path / "ray.jsonl"), "--engine", "ray", "--batch-rows", "32"]) == 1

    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "local.jsonl").read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_folder_as_output_gets_one_file_per_part(tmp_path: Path, default_folder: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("a cat\n\na dog\n")
    command = ["embed", "--model", str(default_folder), "--input", str(source), "--output", f"{tmp_path}/out/"]

    assert main([*command, "--engine", "ray", "--batch-rows", "2", "--max-replicas", "1", "--quiet"]) == 0

    assert pyarrow.parquet.read_table(tmp_path / "out")["index"].to_pylist() == [0, 1, 2]


def test_a_folder_as_output_needs_ray(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "--input", "a.txt", "--output", f"{tmp_path}/out/"]) == 2
    assert "needs --engine ray" in capsys.readouterr().err
