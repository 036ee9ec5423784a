"""An interrupted run continues, and its output equals that of an uninterrupted run."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from cenote.errors import BadRequest, EngineStopped
from cenote.files.partial_file import PartialFile

from .conftest import CommandResult, FakeEngine, vector

Command = Callable[..., CommandResult]
SUFFIXES = ["jsonl", "npy", "parquet"]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Ten rows, two of them invalid; slices of three end at 3, 6, 9."""
    path = tmp_path / "texts.jsonl"
    rows = [json.dumps({"text": "too long" if number == 1 else f"text {number}"}) for number in range(10)]
    rows[4] = "{broken"
    path.write_text("\n".join(rows))
    return path


def stop_at_call(engine: FakeEngine, call: int, error: BaseException) -> None:
    def stop(number: int) -> None:
        if number == call:
            raise error

    engine.on_call = stop


def command(texts: Path, out: Path, *more: str) -> list[str]:
    return ["embed", "--input", str(texts), "--output", str(out), "--batch-rows", "3", *more]


def resume_note(texts: Path, out: Path, rows: str) -> str:
    words = " ".join(command(texts, out))
    return f"rows kept: {rows}, in {out}.part; run the same command to continue: cenote {words}"


def leftover_names(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path.name.startswith(out.name) and path != out)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_interrupted_run_ends_with_the_same_file(
    suffix: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    uninterrupted, out = tmp_path / f"uninterrupted.{suffix}", tmp_path / f"out.{suffix}"
    cenote_command(*command(texts, uninterrupted))
    engine.requests.clear()
    stop_at_call(engine, 3, KeyboardInterrupt())

    stopped = cenote_command(*command(texts, out))

    assert stopped.status == 130
    assert stopped.err == f"cenote: interrupted; {resume_note(texts, out, '6 of 10')}\n"
    assert not out.exists()

    engine.requests.clear()
    engine.on_call = lambda number: None
    continued = cenote_command(*command(texts, out))

    assert continued.status == 1
    assert continued.err.startswith(f"cenote: continuing {out}.part at row 6 of 10\n")
    assert "2 of 10 rows failed" in continued.err
    assert [len(request.inputs) for request in engine.requests] == [3, 1]
    assert out.read_bytes() == uninterrupted.read_bytes()
    errors = [f"out.{suffix}.errors.jsonl"] if suffix == "npy" else []
    assert leftover_names(out) == errors
    for name in errors:
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("out", "uninterrupted")).read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_in_progress_at_ctrl_c_are_kept(
    suffix: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    out = tmp_path / f"out.{suffix}"

    def press_ctrl_c(number: int) -> None:
        if number == 2:
            signal.raise_signal(signal.SIGINT)

    engine.on_call = press_ctrl_c

    stopped = cenote_command(*command(texts, out))

    assert (stopped.status, len(engine.requests)) == (130, 2)
    assert stopped.err == f"cenote: interrupted; {resume_note(texts, out, '6 of 10')}\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_interrupts_at_once(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def press_ctrl_c_twice(number: int) -> None:
        if number == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    engine.on_call = press_ctrl_c_twice

    assert cenote_command(*command(texts, out)).err == f"cenote: interrupted; {resume_note(texts, out, '3 of 10')}\n"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_interrupted_at_any_row_ends_with_the_same_file(
    suffix: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    """A different --batch-rows does not make it a different command."""
    uninterrupted, out = tmp_path / f"uninterrupted.{suffix}", tmp_path / f"out.{suffix}"
    cenote_command(*command(texts, uninterrupted))
    engine.requests.clear()
    for batch_rows in ("2", "1", "3"):
        stop_at_call(engine, len(engine.requests) + 2, KeyboardInterrupt())
        cenote_command("embed", "--input", texts, "--output", out, "--batch-rows", batch_rows)

    engine.on_call = lambda number: None
    continued = cenote_command(*command(texts, out))

    assert continued.err.startswith(f"cenote: continuing {out}.part at row ")
    assert out.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_blank_lines_count_in_the_index_also_after_an_interrupt(
    suffix: str, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    texts, uninterrupted, out = (
        tmp_path / "texts.jsonl",
        tmp_path / f"uninterrupted.{suffix}",
        tmp_path / f"out.{suffix}",
    )
    lines = ["", '"one"', " ", "", '"two"', '"too long"', "", '"three"', '"four"', "", ""]
    texts.write_text("\n".join(lines))
    cenote_command("embed", "--input", texts, "--output", uninterrupted, "--batch-rows", "2")
    engine.requests.clear()
    stop_at_call(engine, 2, KeyboardInterrupt())
    assert "rows kept: 2 of 5" in cenote_command("embed", "--input", texts, "--output", out, "--batch-rows", "2").err
    engine.on_call = lambda number: None
    cenote_command("embed", "--input", texts, "--output", out, "--batch-rows", "2")

    assert out.read_bytes() == uninterrupted.read_bytes()
    if suffix == "npy":
        matrix = np.load(out)
        assert matrix.shape == (9, 4)
        assert np.flatnonzero(~np.isnan(matrix).any(axis=1)).tolist() == [1, 4, 7, 8]
        assert matrix[7].tolist() == vector("three")
        assert json.loads(out.with_name("out.npy.errors.jsonl").read_text())["index"] == 5
    elif suffix == "parquet":
        assert pyarrow.parquet.read_table(out)["index"].to_pylist() == [1, 4, 5, 7, 8]
    else:
        assert [json.loads(line)["index"] for line in out.read_text().splitlines()] == [1, 4, 5, 7, 8]


def test_parquet_slices_of_a_long_run_are_merged_into_groups_and_one_file(
    cenote_command: Command, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cenote.files.parquet_writer.GROUP_ROWS", 8)
    texts, out = tmp_path / "texts.jsonl", tmp_path / "out.parquet"
    # the first ids are null and have no type
    rows = [{"text": f"text {number}", "id": None if number < 10 else number} for number in range(30)]
    texts.write_text("\n".join(map(json.dumps, rows)))
    argv = ["embed", "--input", texts, "--output", out, "--id-column", "id", "--batch-rows", "3"]
    stop_at_call(engine, 9, KeyboardInterrupt())
    assert "rows kept: 24 of 30" in cenote_command(*argv).err
    assert sorted(path.name for path in Path(f"{out}.part").iterdir()) == [
        "000000000000.parquet",
        "000000000009.parquet",
        "000000000018.parquet",
        "000000000021.parquet",
    ]

    engine.on_call = lambda number: None
    assert cenote_command(*argv).status == 0

    parquet = pyarrow.parquet.ParquetFile(out)
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_incomplete_last_write_is_dropped(
    suffix: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    uninterrupted, out = tmp_path / f"uninterrupted.{suffix}", tmp_path / f"out.{suffix}"
    cenote_command(*command(texts, uninterrupted))
    engine.requests.clear()
    stop_at_call(engine, 3, KeyboardInterrupt())
    cenote_command(*command(texts, out))
    truncate_last_write(tmp_path / f"out.{suffix}.part", suffix)

    engine.on_call = lambda number: None
    continued = cenote_command(*command(texts, out))

    assert "at row 6 of 10" in continued.err
    assert "2 of 10 rows failed" in continued.err
    assert out.read_bytes() == uninterrupted.read_bytes()


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_after_a_lost_slice_the_rest_is_computed_again(
    damage: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    uninterrupted, out = tmp_path / "uninterrupted.parquet", tmp_path / "out.parquet"
    cenote_command(*command(texts, uninterrupted))
    engine.requests.clear()
    stop_at_call(engine, 4, KeyboardInterrupt())
    cenote_command(*command(texts, out))
    slice_path = tmp_path / "out.parquet.part" / "000000000003.parquet"
    if damage == "missing":
        slice_path.unlink()
    else:
        slice_path.write_bytes(slice_path.read_bytes()[:100])

    engine.on_call = lambda number: None
    continued = cenote_command(*command(texts, out))

    assert "at row 3 of 10" in continued.err
    assert out.read_bytes() == uninterrupted.read_bytes()


def test_rows_computed_before_the_engine_died_are_kept(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    stop_at_call(engine, 2, EngineStopped("the device is lost"))

    stopped = cenote_command(*command(texts, out))

    assert (stopped.status, stopped.err) == (1, f"cenote: the device is lost; {resume_note(texts, out, '3 of 10')}\n")


def test_a_run_that_fails_at_once_leaves_no_files(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    stop_at_call(engine, 1, BadRequest("this model cannot embed"))

    assert cenote_command(*command(texts, tmp_path / "out.jsonl")).err == "cenote: this model cannot embed\n"
    assert leftover_names(tmp_path / "out.jsonl") == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_partial_file_of_another_command_is_refused_and_overwrite_discards_it(
    suffix: str, texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    out = tmp_path / f"out.{suffix}"
    stop_at_call(engine, 3, KeyboardInterrupt())
    cenote_command(*command(texts, out))
    engine.on_call = lambda number: None

    refused = cenote_command(*command(texts, out, "--dimensions", "2"))

    assert refused.status == 1
    assert refused.err == (
        f"cenote: {out}.part belongs to another command (dimensions was null, now 2); "
        "resume that one, or use --overwrite\n"
    )

    engine.requests.clear()
    assert cenote_command(*command(texts, out, "--dimensions", "2", "--overwrite")).status == 1
    assert len(engine.requests) == 4


def test_an_input_that_has_changed_is_another_command(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    stop_at_call(engine, 3, KeyboardInterrupt())
    cenote_command(*command(texts, tmp_path / "out.jsonl"))
    texts.write_text(texts.read_text() + '\n{"text": "one more"}')

    assert "(bytes was " in cenote_command(*command(texts, tmp_path / "out.jsonl")).err


def test_a_partial_file_without_its_manifest_is_refused(texts: Path, cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl.part").write_text("other content\n")

    assert "its .part.json cannot be read" in cenote_command(*command(texts, tmp_path / "out.jsonl")).err
    assert (tmp_path / "out.jsonl.part").read_text() == "other content\n"


def test_a_finished_file_is_replaced_only_with_overwrite(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")

    assert cenote_command(*command(texts, out)).err == f"cenote: {out} exists; --overwrite replaces it\n"
    assert engine.requests == []
    stop_at_call(engine, 2, KeyboardInterrupt())
    cenote_command(*command(texts, out, "--overwrite"))
    assert out.read_text() == "precious"
    engine.on_call = lambda number: None
    assert "at row 3 of 10" in cenote_command(*command(texts, out, "--overwrite")).err
    assert len(out.read_text().splitlines()) == 10


def test_standard_input_starts_over(
    cenote_command: Command, engine: FakeEngine, pipe: Callable[[bytes], None], tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    pipe(b"one\ntwo\n")
    stop_at_call(engine, 2, KeyboardInterrupt())
    stopped = cenote_command("embed", "--output", out, "--batch-rows", "1")
    assert stopped.err == (
        f"cenote: interrupted; rows kept: 1, in {out}.part; "
        "standard input cannot be resumed: the next run starts over\n"
    )

    engine.on_call = lambda number: None
    pipe(b"three\n")
    assert cenote_command("embed", "--output", out, "--batch-rows", "1").status == 0
    assert len(out.read_text().splitlines()) == 1


def test_two_processes_do_not_write_one_partial_file(tmp_path: Path) -> None:
    first, second = PartialFile(tmp_path / "out.npy", {"a": 1}), PartialFile(tmp_path / "out.npy", {"a": 1})
    first.open(fresh=True)

    with pytest.raises(BadRequest, match="is being written by another process"):
        second.open(fresh=False)
    first.close()
    second.open(fresh=False)
    second.close()


def test_neither_the_manifest_nor_the_message_contains_the_token(
    texts: Path, cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    stop_at_call(engine, 2, KeyboardInterrupt())

    stopped = cenote_command(
        *command(texts, tmp_path / "out.jsonl", "--hf-token", "hf_secret", "--model", "some/model")
    )

    manifest = (tmp_path / "out.jsonl.part.json").read_text()
    assert "hf_secret" not in manifest + stopped.err
    assert "--hf-token ... --model some/model" in stopped.err
    assert json.loads(manifest)["model"] == "some/model"


def test_an_output_in_a_missing_folder_is_refused(texts: Path, cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command(*command(texts, tmp_path / "nowhere" / "out.npy"))

    assert result.err == f"cenote: the folder {tmp_path / 'nowhere'} does not exist; create it first\n"
