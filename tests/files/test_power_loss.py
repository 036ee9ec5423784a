"""A loss of power, or a kill, at any moment: what is there under its final name is complete, and the rest resumes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cenote
from cenote.files.parquet_writer import ParquetWriter
from cenote.files.partial_file import PartialFile
from cenote.files.result_slice import ResultSchema, ResultSlice
from cenote.files.sources import InputRow
from cenote.files.writers import JsonLinesWriter, NpyWriter, ResumePoint
from cenote.ray.part_output import PartOutput
from cenote.utils.cache_folder import write_atomically
from tests.files.power_loss import RecordingDisk, write_files

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

NUM_ROWS, SLICE_ROWS, WIDTH = 10, 3, 2
FAILED = (1, 8)
SCHEMA = ResultSchema("embedding")
WRITERS: dict[str, Callable[..., Any]] = {"jsonl": JsonLinesWriter, "npy": NpyWriter, "parquet": ParquetWriter}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordingDisk]:
    disk = RecordingDisk(folder, monkeypatch)
    yield disk
    disk.close()


def make_slice(start: int) -> ResultSlice:
    """Return the results of some rows; row i is [i, i]."""
    rows = [
        InputRow(row, error="too long") if row in FAILED else InputRow(row, ("text",))
        for row in range(start, min(start + SLICE_ROWS, NUM_ROWS))
    ]
    worked = [position for position, row in enumerate(rows) if row.error is None]
    values = np.array([[rows[position].index] * WIDTH for position in worked], dtype=np.float32).reshape(-1, WIDTH)
    return ResultSlice(rows, worked, values, np.zeros(0, dtype=np.int64), [1] * len(worked))


def run_job(output: Path) -> ResumePoint:
    """Write all rows, or those that are missing; return where the job began."""
    partial_file = PartialFile(output, {"input": "texts"})
    writer = WRITERS[output.suffix[1:]](partial_file, SCHEMA)
    start = writer.resume() if partial_file.check_resumable(overwrite=False) else ResumePoint()
    writer.open()
    for row in range(start.num_rows, NUM_ROWS, SLICE_ROWS):
        writer.write(make_slice(row))
    writer.finish()
    return start


def read_results(folder: Path, suffix: str) -> dict[Any, Any]:
    """Return the rows, of a format whose bytes depend on the slices; else the files."""
    if suffix == "parquet":
        import pyarrow.parquet

        rows = pyarrow.parquet.read_table(folder / "out.parquet").to_pylist()
        return {row["index"]: str(row) for row in rows}
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_job_that_lost_its_power_ends_with_the_same_file(
    folder: Path, disk: RecordingDisk, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(folder / f"out.{suffix}")
    disk.record()
    monkeypatch.undo()
    expected = read_results(folder, suffix)

    for number, state in enumerate(disk.states):
        after = write_files(tmp_path / str(number), state)
        if not (after / f"out.{suffix}").exists():
            run_job(after / f"out.{suffix}")
        found = read_results(after, suffix)
        assert {name: found.get(name) for name in expected} == expected

    assert len(disk.states) > 5


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_only_the_last_slice_is_computed_again_after_a_loss_of_power(
    folder: Path, disk: RecordingDisk, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial_file = PartialFile(folder / f"out.{suffix}", {"input": "texts"})
    writer = WRITERS[suffix](partial_file, SCHEMA)
    writer.open()
    for row in (0, SLICE_ROWS):
        writer.write(make_slice(row))
    disk.states.clear()
    disk.record()
    writer.write(make_slice(2 * SLICE_ROWS))
    writer.close()
    monkeypatch.undo()

    starts = {run_job(write_files(tmp_path / str(n), s) / f"out.{suffix}") for n, s in enumerate(disk.states)}

    assert starts <= {ResumePoint(2 * SLICE_ROWS, 1), ResumePoint(3 * SLICE_ROWS, 2)}


def test_a_matrix_whose_header_is_written_resumes_at_its_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(PartialFile, "finish", die)
        run_job(folder / "out.npy")
    assert (folder / "out.npy.part").read_bytes().startswith(b"\x93NUMPY")

    start = run_job(folder / "out.npy")

    assert start == ResumePoint(NUM_ROWS, len(FAILED))
    matrix = np.load(folder / "out.npy")
    assert [row for row in range(NUM_ROWS) if np.isnan(matrix[row]).all()] == list(FAILED)
    errors = (folder / "out.npy.errors.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in errors] == list(FAILED)
    assert {path.name for path in folder.iterdir()} == {"out.npy", "out.npy.errors.jsonl"}


def test_zeros_in_the_place_of_lines_are_written_again(folder: Path) -> None:
    output = folder / "out.jsonl"
    run_job(output)
    whole = output.read_bytes()
    lines = whole.splitlines(keepends=True)
    with closing(PartialFile(output, {"input": "texts"})) as partial_file:
        partial_file.open(fresh=True)
    gap = bytes(len(lines[4]) + 5) + lines[5][5:]
    (folder / "out.jsonl.part").write_bytes(b"".join([*lines[:4], gap, *lines[6:]]))
    output.unlink()

    start = run_job(output)

    assert start.num_rows == 4
    assert output.read_bytes() == whole


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_part_of_a_distributed_job_is_there_only_if_it_is_complete(
    folder: Path, disk: RecordingDisk, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = PartOutput(str(folder), format)
    for number in range(2):
        if format == "jsonl":
            target.write_bytes(number, b'{"index":%d}\n' % number)
        else:
            target.write_table(number, {"index": [number]})
        reported = disk.states[:]
        disk.record()
        # a part that was reported as written is there, whatever the disk has of the other names
        assert all(f"part-00000{number}.{format}" in state for state in disk.states if state not in reported)
    monkeypatch.undo()
    complete = {path.name: path.read_bytes() for path in folder.iterdir()}

    for number, state in enumerate(disk.states):
        after = PartOutput(str(write_files(tmp_path / str(number), state)), format)
        done = [part for part in range(2) if after.is_done(part)]
        names = [f"part-00000{part}.{format}" for part in done]
        assert {name: state[name] for name in names} == {name: complete[name] for name in names}


def test_a_file_of_the_cache_is_old_or_new_but_never_a_part(
    folder: Path, disk: RecordingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(folder / "list.json", b"old")
    write_atomically(folder / "list.json", b"new")
    disk.record()
    monkeypatch.undo()

    assert {state["list.json"] for state in disk.states if "list.json" in state} == {b"old", b"new"}
    assert disk.states[-1] == {"list.json": b"new"}


def test_every_rename_of_the_package_is_durable() -> None:
    package = Path(cenote.__file__).parent
    rename = re.compile(r"\bos\.(replace|rename)\(|\.rename\(")
    found = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if rename.search(path.read_text()) and not path.is_relative_to(package / "bench")
    ]

    assert found == ["utils/durable_files.py"]
