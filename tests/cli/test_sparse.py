"""Sparse embeddings on the command line: JSON lines, files, the terminal, and `inspect` of sparse models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cenote import LLM
from cenote.cli.main import main
from tests.tiny import tiny_bge_m3, tiny_splade

TEXTS = ["the cat and the dog and the bird", "a " * 100, "", "how big is the old river?"]  # the second is too long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m3")
    tiny_bge_m3(folder)
    return folder


def encode(folder: Path, task: str, *more: str) -> int:
    return main(["encode", "--model", str(folder), "--dtype", "float32", "--task", task, *more, *TEXTS])


def expected(folder: Path, task: str) -> list[Any]:
    """Return the outputs of LLM for the valid texts."""
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        outputs = llm.encode([TEXTS[0], *TEXTS[2:]], pooling_task=task, use_tqdm=False)
    return [output.outputs for output in outputs]


def test_a_line_has_ids_and_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert encode(folder, "sparse_embed") == 1  # one text failed

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "error" in rows[1]
    for row, output in zip([rows[0], *rows[2:]], expected(folder, "sparse_embed"), strict=True):
        assert row["data"]["token_ids"] == output.token_ids
        assert row["data"]["weights"] == pytest.approx(output.weights, abs=1e-5)


@pytest.mark.parametrize("task", ["sparse_embed", "token_classify"])
def test_parquet_has_lists_of_variable_length(task: str, folder: Path, tmp_path: Path) -> None:
    assert encode(folder, task, "--output", str(tmp_path / "out.parquet")) == 1

    first, failed, *rest = pq.read_table(tmp_path / "out.parquet")["data"].to_pylist()
    assert failed is None
    for row, output in zip([first, *rest], expected(folder, task), strict=True):
        if task == "sparse_embed":
            assert row["token_ids"] == output.token_ids
            assert row["weights"] == pytest.approx(output.weights, abs=1e-5)
        else:
            assert row == pytest.approx(output.data.tolist(), abs=1e-5)


def test_parquet_has_the_type_of_a_column_without_results(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    main(["encode", "--model", str(folder), "--task", "sparse_embed", "--output", str(out), "a " * 100])

    assert str(pq.read_table(out).schema.field("data").type).startswith("struct<token_ids: list<")


def test_npy_is_refused_for_sparse_vectors(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert encode(folder, "sparse_embed", "--output", str(tmp_path / "out.npy")) == 2
    assert (
        "sparse embeddings vary in length and do not fit one .npy matrix; use --format jsonl or parquet"
        in capsys.readouterr().err
    )


def test_a_terminal_shows_the_largest_weights(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    (output, *_) = expected(folder, "sparse_embed")
    largest = max(zip(output.weights, output.token_ids, strict=True))

    encode(folder, "sparse_embed")
    shown = capsys.readouterr().out
    encode(folder, "token_classify")
    numbers = capsys.readouterr().out

    assert f"{len(output.token_ids)} weights, largest {{{largest[1]}: {largest[0]:.4g}" in shown
    assert "0 weights, largest {}, 2 tokens" in shown
    assert "8 numbers [" in numbers


def test_inspect_shows_the_settings_of_splade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_splade(tmp_path, pooling_strategy="sum", activation_function="log1p_relu")

    assert main(["inspect", str(tmp_path)]) == 0

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {words[0]: " ".join(words[1:]) for words in lines}
    assert shown["used"] == "as sparse from 1_Splade/config.json"
    assert shown["pooling"] == "sum of log(1 + log(1 + logit)) from 1_Splade/config.json"
    assert shown["dimensions"] == "160 from config.json vocab_size"
