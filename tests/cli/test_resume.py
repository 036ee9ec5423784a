"""An interrupted run continues, and its output equals that of an uninterrupted run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from cenote.errors import BadRequest, EngineStopped
from cenote.files.partial_file import PartialFile

from .conftest import CommandResult, FakeEngine, vector

Command = Callable[..., CommandResult]


@dataclass
class Job:
    """`cenote embed` of ten rows, two of them invalid, into a file; slices of three end at 3, 6, 9."""

    cenote_command: Command
    engine: FakeEngine
    folder: Path
    suffix: str = "jsonl"

    def __post_init__(self) -> None:
        self.texts, self.out = self.folder / "texts.jsonl", self.folder / f"out.{self.suffix}"
        self.part = self.folder / f"{self.out.name}.part"
        rows = [json.dumps({"text": "too long" if number == 1 else f"text {number}"}) for number in range(10)]
        rows[4] = "{broken"
        self.texts.write_text("\n".join(rows))

    def command(self, *more: str, rows: int = 3, out: Path | None = None) -> list[str]:
        files = ["--input", str(self.texts), "--output", str(out or self.out)]
        return ["embed", *files, "--batch-rows", str(rows), *more]

    def run(self, *more: str, rows: int = 3) -> CommandResult:
        self.engine.requests.clear()
        self.engine.on_call = lambda number: None
        return self.cenote_command(*self.command(*more, rows=rows))

    def run_until(
        self, call: int, *more: str, rows: int = 3, error: BaseException | type[BaseException] = KeyboardInterrupt
    ) -> CommandResult:
        """Run until the engine is called for the nth time, which raises the error."""

        def stop(number: int) -> None:
            if number == call:
                raise error

        self.engine.requests.clear()
        self.engine.on_call = stop
        return self.cenote_command(*self.command(*more, rows=rows))

    def run_uninterrupted(self, rows: int = 3) -> Path:
        """Return another file, of a run from the beginning to the end."""
        path = self.folder / f"uninterrupted.{self.suffix}"
        self.cenote_command(*self.command(rows=rows, out=path))
        return path

    def resume_note(self, rows: str) -> str:
        words = " ".join(self.command())
        return f"rows kept: {rows}, in {self.part}; run the same command to continue: cenote {words}"

    def list_leftovers(self) -> list[str]:
        names = [path.name for path in self.folder.iterdir() if path.name.startswith(self.out.name)]
        return sorted({*names} - {self.out.name})


@pytest.fixture
def job(cenote_command: Command, engine: FakeEngine, tmp_path: Path) -> Job:
    return Job(cenote_command, engine, tmp_path)


@pytest.fixture(params=["jsonl", "npy", "parquet"])
def any_job(request: pytest.FixtureRequest, cenote_command: Command, engine: FakeEngine, tmp_path: Path) -> Job:
    return Job(cenote_command, engine, tmp_path, request.param)


def press_ctrl_c(engine: FakeEngine, call: int, times: int = 1) -> None:
    def press(number: int) -> None:
        for _ in range(times if number == call else 0):
            signal.raise_signal(signal.SIGINT)

    engine.on_call = press


def test_an_interrupted_run_ends_with_the_same_file(any_job: Job) -> None:
    job, uninterrupted = any_job, any_job.run_uninterrupted()

    stopped = job.run_until(3)

    assert stopped.status == 130
    assert stopped.err == f"cenote: interrupted; {job.resume_note('6 of 10')}\n"
    assert not job.out.exists()

    continued = job.run()

    assert continued.status == 1
    assert continued.err.startswith(f"cenote: continuing {job.part} at row 6 of 10\n")
    assert "2 of 10 rows failed" in continued.err
    assert [len(request.inputs) for request in job.engine.requests] == [3, 1]
    assert job.out.read_bytes() == uninterrupted.read_bytes()
    errors = ["out.npy.errors.jsonl"] if job.suffix == "npy" else []
    assert job.list_leftovers() == errors
    for name in errors:
        assert (job.folder / name).read_bytes() == (job.folder / name.replace("out", "uninterrupted")).read_bytes()


def test_rows_in_progress_at_ctrl_c_are_kept(any_job: Job) -> None:
    press_ctrl_c(any_job.engine, 2)

    stopped = any_job.cenote_command(*any_job.command())

    assert (stopped.status, len(any_job.engine.requests)) == (130, 2)
    assert stopped.err == f"cenote: interrupted; {any_job.resume_note('6 of 10')}\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_at_once(job: Job) -> None:
    press_ctrl_c(job.engine, 2, times=2)

    assert job.cenote_command(*job.command()).err == f"cenote: interrupted; {job.resume_note('3 of 10')}\n"


def test_a_run_interrupted_at_any_row_ends_with_the_same_file(any_job: Job) -> None:
    """A different --batch-rows does not make it a different command."""
    uninterrupted = any_job.run_uninterrupted()
    for rows in (2, 1, 3):
        any_job.run_until(2, rows=rows)

    assert any_job.run().err.startswith(f"cenote: continuing {any_job.part} at row ")
    assert any_job.out.read_bytes() == uninterrupted.read_bytes()


def test_blank_lines_count_in_the_index_also_after_an_interrupt(any_job: Job) -> None:
    job, out = any_job, any_job.out
    lines = ["", '"one"', " ", "", '"two"', '"too long"', "", '"three"', '"four"', "", ""]
    job.texts.write_text("\n".join(lines))
    uninterrupted = job.run_uninterrupted(rows=2)
    assert "rows kept: 2 of 5" in job.run_until(2, rows=2).err
    job.run(rows=2)

    assert out.read_bytes() == uninterrupted.read_bytes()
    if job.suffix == "npy":
        matrix = np.load(out)
        assert matrix.shape == (9, 4)
        assert np.flatnonzero(~np.isnan(matrix).any(axis=1)).tolist() == [1, 4, 7, 8]
        assert matrix[7].tolist() == vector("three")
        assert json.loads(out.with_name("out.npy.errors.jsonl").read_text())["index"] == 5
    elif job.suffix == "parquet":
        assert pyarrow.parquet.read_table(out)["index"].to_pylist() == [1, 4, 5, 7, 8]
    else:
        assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [1, 4, 5, 7, 8]


def test_parquet_slices_of_a_long_run_are_merged_into_groups_and_one_file(
    cenote_command: Command, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cenote.files.parquet_writer.GROUP_ROWS", 8)
    job = Job(cenote_command, engine, tmp_path, "parquet")
    # the first ids are null and have no type
    rows = [{"text": f"text {number}", "id": None if number < 10 else number} for number in range(30)]
    job.texts.write_text("\n".join(map(json.dumps, rows)))
    assert "rows kept: 24 of 30" in job.run_until(9, "--id-column", "id").err
    assert sorted(path.name for path in job.part.iterdir()) == [
        "000000000000.parquet",
        "000000000009.parquet",
        "000000000018.parquet",
        "000000000021.parquet",
    ]

    assert job.run("--id-column", "id").status == 0

    parquet = pyarrow.parquet.ParquetFile(job.out)
    assert parquet.read()["id"].to_pylist() == [row["id"] for row in rows]
    assert np.array(parquet.read()["embedding"].to_pylist()).tolist() == [vector(f"text {n}") for n in range(30)]
    assert [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)] == [8, 8, 8, 6]


def truncate_last_write(part: Path, suffix: str) -> None:
    """Add what a SIGKILL during a write leaves: an incomplete line, row or slice, and errors of missing rows."""
    if suffix == "jsonl":
        part.write_bytes(part.read_bytes() + b'{"index":6,"embed')
    elif suffix == "npy":
        part.write_bytes(part.read_bytes() + b"\1" * 21)
        errors = part.with_name(part.name + ".errors.jsonl")
        errors.write_bytes(errors.read_bytes() + b'{"index":7,"error":"x"}\n{"index":8,"err')
    else:
        (part / "000000000006.tmp").write_bytes(b"PAR1")


def test_an_incomplete_last_write_is_dropped(any_job: Job) -> None:
    uninterrupted = any_job.run_uninterrupted()
    any_job.run_until(3)
    truncate_last_write(any_job.part, any_job.suffix)

    continued = any_job.run()

    assert "at row 6 of 10" in continued.err
    assert "2 of 10 rows failed" in continued.err
    assert any_job.out.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_after_a_lost_slice_the_rest_is_computed_again(
    damage: str, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    job = Job(cenote_command, engine, tmp_path, "parquet")
    uninterrupted = job.run_uninterrupted()
    job.run_until(4)
    slice_path = job.part / "000000000003.parquet"
    if damage == "missing":
        slice_path.unlink()
    else:
        slice_path.write_bytes(slice_path.read_bytes()[:100])

    assert "at row 3 of 10" in job.run().err
    assert job.out.read_bytes() == uninterrupted.read_bytes()


def test_rows_computed_before_the_engine_died_are_kept(job: Job) -> None:
    stopped = job.run_until(2, error=EngineStopped("the device is lost"))

    assert (stopped.status, stopped.err) == (1, f"cenote: the device is lost; {job.resume_note('3 of 10')}\n")


def test_a_run_that_fails_at_once_leaves_no_files(job: Job) -> None:
    assert job.run_until(1, error=BadRequest("this model cannot embed")).err == "cenote: this model cannot embed\n"
    assert job.list_leftovers() == []


def test_the_partial_file_of_another_command_is_refused_and_overwrite_discards_it(any_job: Job) -> None:
    any_job.run_until(3)

    refused = any_job.run("--dimensions", "2")

    assert refused.status == 1
    assert refused.err == (
        f"cenote: {any_job.part} belongs to another command (dimensions was null, now 2); "
        "resume that one, or use --overwrite\n"
    )
    assert any_job.run("--dimensions", "2", "--overwrite").status == 1
    assert len(any_job.engine.requests) == 4


def test_an_input_that_has_changed_is_another_command(job: Job) -> None:
    job.run_until(3)
    job.texts.write_text(job.texts.read_text() + '\n{"text": "one more"}')

    assert "(bytes was " in job.run().err


def test_a_partial_file_without_its_manifest_is_refused(job: Job) -> None:
    job.part.write_text("other content\n")

    assert "its .part.json cannot be read" in job.run().err
    assert job.part.read_text() == "other content\n"


def test_a_finished_file_is_replaced_only_with_overwrite(job: Job) -> None:
    job.out.write_text("precious")

    assert job.run().err == f"cenote: {job.out} exists; --overwrite replaces it\n"
    assert job.engine.requests == []
    job.run_until(2, "--overwrite")
    assert job.out.read_text() == "precious"
    assert "at row 3 of 10" in job.run("--overwrite").err
    assert len(job.out.read_text().splitlines()) == 10


def test_standard_input_starts_over(job: Job, pipe: Callable[[bytes], None]) -> None:
    words = ["embed", "--output", str(job.out), "--batch-rows", "1"]
    pipe(b"one\ntwo\n")
    press_ctrl_c(job.engine, 1)
    stopped = job.cenote_command(*words)
    assert stopped.err == (
        f"cenote: interrupted; rows kept: 1, in {job.part}; "
        "standard input cannot be resumed: the next run starts over\n"
    )

    job.engine.on_call = lambda number: None
    pipe(b"three\n")
    assert job.cenote_command(*words).status == 0
    assert len(job.out.read_text().splitlines()) == 1


def test_two_processes_do_not_write_one_partial_file(tmp_path: Path) -> None:
    first, second = PartialFile(tmp_path / "out.npy", {"a": 1}), PartialFile(tmp_path / "out.npy", {"a": 1})
    first.open(fresh=True)

    with pytest.raises(BadRequest, match="is being written by another process"):
        second.open(fresh=False)
    first.close()
    second.open(fresh=False)
    second.close()


def test_neither_the_manifest_nor_the_message_contains_the_token(job: Job) -> None:
    stopped = job.run_until(2, "--hf-token", "hf_secret", "--model", "some/model")

    manifest = job.part.with_name("out.jsonl.part.json").read_text()
    assert "hf_secret" not in manifest + stopped.err
    assert "--hf-token ... --model some/model" in stopped.err
    assert json.loads(manifest)["model"] == "some/model"


def test_an_output_in_a_missing_folder_is_refused(job: Job) -> None:
    job.out = job.folder / "nowhere" / "out.npy"

    assert job.run().err == f"cenote: the folder {job.out.parent} does not exist; create it first\n"
