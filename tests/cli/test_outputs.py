"""Output of every command in every format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from .conftest import CommandResult, FakeEngine, vector

Command = Callable[..., CommandResult]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Three rows, of which the middle one fails in the engine."""
    path = tmp_path / "texts.jsonl"
    path.write_text(
        "".join(json.dumps({"id": f"k{n}", "text": t}) + "\n" for n, t in enumerate(["a b", "too long", "c"]))
    )
    return path


def test_embed_prints_json_lines_with_short_numbers(cenote_command: Command) -> None:
    result = cenote_command("embed", "hello world", "bye")

    numbers = ",".join(str(np.float32(value)) for value in vector("hello world"))
    assert result.status == 0
    assert result.out.splitlines()[0] == f'{{"index":0,"embedding":[{numbers}],"num_tokens":2}}'
    assert result.rows[1]["num_tokens"] == 1


def test_late_chunking_prints_a_vector_per_chunk_with_its_place(cenote_command: Command, engine: FakeEngine) -> None:
    result = cenote_command("embed", "one two. three four", "short", "--late-chunking", "--chunk-size", 12)

    assert engine.requests[0].params.late_chunking
    assert result.rows[0]["chunks"] == [[0, 8], [8, 19]]
    assert result.rows[0]["embeddings"] == [pytest.approx(vector(text)) for text in ("one two.", " three four")]
    assert result.rows[1]["chunks"] == [[0, 5]]


def test_late_chunking_writes_parquet_and_no_matrix(cenote_command: Command, texts: Path, tmp_path: Path) -> None:
    output = tmp_path / "chunks.parquet"
    assert cenote_command("embed", "--input", texts, "--late-chunking", "--output", output).status == 1
    table = pq.read_table(output).to_pydict()
    assert table["chunks"] == [[[0, 3]], None, [[0, 1]]]
    assert table["embeddings"][0] == [pytest.approx(vector("a b"))]

    matrix = cenote_command("embed", "--input", texts, "--late-chunking", "--output", tmp_path / "chunks.npy")
    assert matrix.status == 2 and "the chunks of texts vary in number" in matrix.err


def test_a_chunk_size_needs_late_chunking(cenote_command: Command) -> None:
    result = cenote_command("embed", "hello", "--chunk-size", 20)

    assert result.status == 2 and "--chunk-size 20 is for --late-chunking" in result.err


def test_classify_prints_the_best_label_and_all_probabilities(cenote_command: Command, engine: FakeEngine) -> None:
    result = cenote_command("classify", "hello")

    best = int(np.argmax(vector("hello")))
    assert engine.requests[0].task == "classify"
    assert result.rows[0]["label"] == ["cold", "warm", "hot", "boiling"][best]
    assert result.rows[0]["probs"] == pytest.approx(vector("hello"))


def test_score_prints_one_number(cenote_command: Command) -> None:
    result = cenote_command("score", "a b c", "b c d")

    assert result.out == '{"index":0,"score":0.2,"num_tokens":3}\n'


def test_score_takes_exactly_two_texts(cenote_command: Command) -> None:
    result = cenote_command("score", "a", "b", "c")

    assert result.status == 2
    assert "score expects 2 texts, got 3; rerank takes one query and many documents" in result.err


def test_encode_prints_a_vector_per_token(cenote_command: Command, engine: FakeEngine) -> None:
    result = cenote_command("encode", "two words", "", "--task", "token_classify")

    assert engine.requests[0].task == "token_classify"
    assert result.rows[0]["data"] == [pytest.approx(vector("two words"))] * 2
    assert result.rows[1]["data"] == []


def test_encode_prints_one_vector_for_a_task_that_pools(cenote_command: Command) -> None:
    assert cenote_command("encode", "two words", "--task", "embed").rows[0]["data"] == pytest.approx(
        vector("two words")
    )


@pytest.mark.parametrize("suffix", ["jsonl", "npy", "parquet"])
def test_an_empty_output_file_is_filled_in_place(
    cenote_command: Command, texts: Path, tmp_path: Path, suffix: str
) -> None:
    new, existing = tmp_path / f"new.{suffix}", tmp_path / f"existing.{suffix}"
    cenote_command("embed", "--input", texts, "--output", new)
    existing.touch()
    with open(existing, "rb") as reader:
        cenote_command("embed", "--input", texts, "--output", existing)

        assert reader.read() == existing.read_bytes() == new.read_bytes() != b""


def test_jsonl_in_a_file_equals_the_output_on_stdout(cenote_command: Command, texts: Path, tmp_path: Path) -> None:
    shown = cenote_command("embed", "--input", texts, "--id-column", "id")

    result = cenote_command("embed", "--input", texts, "--id-column", "id", "--output", tmp_path / "out.jsonl")

    assert (tmp_path / "out.jsonl").read_text() == shown.out
    assert (result.status, result.out) == (1, "")
    assert result.err.splitlines()[-1] == "cenote: 1 of 3 rows failed; see their error"
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []


def test_npy_is_a_matrix_with_nan_rows_and_their_reasons_beside_it(
    cenote_command: Command, texts: Path, tmp_path: Path
) -> None:
    result = cenote_command("embed", "--input", texts, "--output", tmp_path / "out.npy", "--batch-rows", "1")

    matrix = np.load(tmp_path / "out.npy")
    assert (matrix.dtype, matrix.shape) == (np.float32, (3, 4))
    assert matrix[[0, 2]].tolist() == [vector("a b"), vector("c")]
    assert np.isnan(matrix[1]).all()
    reasons = [json.loads(line) for line in (tmp_path / "out.npy.errors.jsonl").read_text().splitlines()]
    assert reasons == [{"index": 1, "error": "input has 900 tokens, fake reads at most 512"}]
    assert result.err.splitlines()[-1] == f"cenote: 1 of 3 rows failed; see {tmp_path / 'out.npy'}.errors.jsonl"


def test_npy_finds_its_width_when_the_first_rows_fail(cenote_command: Command, tmp_path: Path) -> None:
    cenote_command("embed", "too long", "too long", "ok", "--batch-rows", "1", "--output", tmp_path / "out.npy")

    matrix = np.load(tmp_path / "out.npy")
    assert np.isnan(matrix[:2]).all()
    assert matrix[2].tolist() == vector("ok")


def test_npy_without_failures_has_no_errors_file(cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "out.npy.errors.jsonl").write_text("of an earlier run\n")

    assert cenote_command("embed", "ok", "--output", tmp_path / "out.npy").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_scores_in_npy_are_one_dimensional(cenote_command: Command, tmp_path: Path) -> None:
    cenote_command("score", "a b", "a b", "--output", tmp_path / "out.npy")

    assert np.load(tmp_path / "out.npy").tolist() == [pytest.approx(0.2)]


def test_npy_is_refused_for_token_embeddings(cenote_command: Command, tmp_path: Path) -> None:
    result = cenote_command("encode", "hello", "--output", tmp_path / "out.npy")

    assert result.status == 2
    assert "token embeddings vary in length and do not fit one .npy matrix; use --format jsonl or parquet" in result.err


def test_parquet_has_fixed_size_vectors_and_a_column_of_errors(
    cenote_command: Command, texts: Path, tmp_path: Path
) -> None:
    cenote_command("embed", "--input", texts, "--id-column", "id", "--output", tmp_path / "out.parquet")

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == ["index", "id", "embedding", "num_tokens", "error"]
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    rows = table["embedding"].to_pylist()
    assert (rows[0], rows[2]) == (vector("a b"), vector("c"))
    assert np.isnan(rows[1]).all()
    assert table["id"].to_pylist() == ["k0", "k1", "k2"]
    assert table["num_tokens"].to_pylist() == [2, None, 1]
    assert table["error"].to_pylist() == [None, "input has 900 tokens, fake reads at most 512", None]


@pytest.mark.parametrize("texts", [["too long", "ok"], ["ok", "too long"]])
def test_parquet_slices_agree_on_types_when_one_has_only_failures(
    texts: list[str], cenote_command: Command, tmp_path: Path
) -> None:
    cenote_command("embed", *texts, "--batch-rows", "1", "--output", tmp_path / "out.parquet")

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 4)
    assert [bool(np.isnan(row).all()) for row in table["embedding"].to_pylist()] == [t == "too long" for t in texts]


def test_parquet_ids_of_several_types_become_strings(cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": "x", "text": "b"}\n{"id": null, "text": "c"}\n')
    command = ["embed", "--input", tmp_path / "a.jsonl", "--id-column", "id", "--overwrite"]

    for size in ("1", "2", "3"):
        cenote_command(*command, "--batch-rows", size, "--output", tmp_path / "out.parquet")

        assert pq.read_table(tmp_path / "out.parquet")["id"].to_pylist() == ["1", "x", None]


def test_parquet_takes_ids_of_any_shape(cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": {"a": 1}, "text": "a"}\n{"id": "\\ud800", "text": "b"}\n')
    out = tmp_path / "out.parquet"

    assert cenote_command("embed", "--input", tmp_path / "a.jsonl", "--id-column", "id", "--output", out).status == 0
    assert pq.read_table(out)["id"].to_pylist() == ['{"a": 1}', "\\ud800"]


def test_parquet_of_tokens_is_a_list_of_lists(cenote_command: Command, tmp_path: Path) -> None:
    cenote_command("encode", "one two", "three", "--output", tmp_path / "out.parquet")

    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.field("data").type == pa.list_(pa.list_(pa.float32()))
    assert table["data"].to_pylist() == [[vector("one two")] * 2, [vector("three")]]


def test_parquet_of_labels_and_of_scores(cenote_command: Command, tmp_path: Path) -> None:
    cenote_command("classify", "a", "too long", "--output", tmp_path / "labels.parquet")
    cenote_command("score", "a b", "b a", "--output", tmp_path / "scores.parquet")

    labels = pq.read_table(tmp_path / "labels.parquet")
    assert labels.schema.names == ["index", "label", "probs", "num_tokens", "error"]
    assert labels["label"].to_pylist()[1] is None
    assert pq.read_table(tmp_path / "scores.parquet")["score"].to_pylist() == [pytest.approx(0.2)]


@pytest.mark.parametrize("suffix", ["jsonl", "npy", "parquet"])
def test_an_empty_file_gives_an_empty_file(suffix: str, cenote_command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    out = tmp_path / f"out.{suffix}"

    assert cenote_command("embed", "--input", tmp_path / "empty.txt", "--output", out).status == 0
    if suffix == "jsonl":
        assert out.read_bytes() == b""
    elif suffix == "npy":
        assert np.load(out).shape == (0, 0)
    else:
        assert pq.read_table(out).num_rows == 0


def test_a_terminal_gets_a_short_form(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    shown = cenote_command("embed", "hello world", "too long")
    tokens = cenote_command("encode", "hello world")
    label = cenote_command("classify", "hello")
    score = cenote_command("score", "a", "a")
    json_anyway = cenote_command("embed", "hello", "--format", "jsonl")

    assert shown.out.startswith("hello world\n  4 numbers [0.")
    assert "too long\n  failed: input has 900 tokens" in shown.out
    assert "2 vectors of 4 numbers, first [0." in tokens.out
    assert label.out.splitlines()[1].split(",")[0].strip() in ("cold", "warm", "hot", "boiling")
    assert score.out == "a | a\n  score 0.1, 3 tokens\n"
    assert json_anyway.rows[0]["index"] == 0


def test_quiet_prints_nothing_about_a_successful_run(cenote_command: Command, texts: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")

    verbose = cenote_command("embed", "--input", tmp_path / "a.txt", "--output", tmp_path / "verbose.npy")
    quiet = cenote_command("embed", "--input", tmp_path / "a.txt", "--output", tmp_path / "quiet.npy", "--quiet")

    assert verbose.err.startswith(f"cenote: 2 rows in {tmp_path / 'verbose.npy'} (")
    assert quiet.err == ""


def test_a_terminal_gets_a_bar_with_tokens_per_second(
    cenote_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    result = cenote_command("embed", "--input", tmp_path / "a.txt")

    assert "2/2" in result.err
    assert "tokens/s" in result.err
