"""`cenote entities`: JSON lines, Parquet files, the terminal, and options that are wrong for every text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cenote import LLM
from cenote.cli.main import main
from tests.tiny import tiny_bert, tiny_bert_token_classifier

LABELS = dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))
TEXTS = [
    "the big cat and the old dog",
    "",
    "how big is the old river? " * 30,
]  # the last is longer than the model reads
FIELDS = ["label", "score", "start", "end", "text"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ner")
    tiny_bert_token_classifier(folder, id2label=LABELS, label2id={name: index for index, name in LABELS.items()})
    return folder


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[dict[str, Any]]]:
    """The entities of LLM.entities, with the score as it is in files."""
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        outputs = llm.entities(TEXTS, use_tqdm=False)
    rows = [[{name: getattr(entity, name) for name in FIELDS} for entity in o.outputs.entities] for o in outputs]
    assert rows[0] and rows[2], "expected a model that finds something"
    return rows


def find_entities(folder: Path, *words: str) -> int:
    return main(["entities", "--model", str(folder), "--dtype", "float32", "--device", "cpu", *words])


def is_equal(row: list[dict[str, Any]], expected: list[dict[str, Any]]) -> bool:
    scores = [[entity["score"] for entity in entities] for entities in (row, expected)]
    others = [[{**entity, "score": 0} for entity in entities] for entities in (row, expected)]
    return scores[0] == pytest.approx(scores[1], abs=1e-5) and others[0] == others[1]


def test_a_line_has_the_spans_of_its_text(
    folder: Path, expected: list[list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_entities(folder, *TEXTS) == 0

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert all(map(is_equal, [row["entities"] for row in rows], expected))
    assert [row["truncated"] for row in rows] == [False, False, True]
    for entity in rows[0]["entities"]:
        assert list(entity) == FIELDS
        assert TEXTS[0][entity["start"] : entity["end"]] == entity["text"]


def test_parquet_has_lists_of_structs_and_copies_ids(
    folder: Path, expected: list[list[dict[str, Any]]], tmp_path: Path
) -> None:
    lines = [json.dumps({"body": text, "key": f"k{number}"}) for number, text in enumerate(TEXTS)]
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, '{"body": null, "key": "none"}']))
    output = tmp_path / "out.parquet"
    words = ["--input", str(tmp_path / "texts.jsonl"), "--column", "body", "--id-column", "key", "--quiet"]

    assert find_entities(folder, *words, "--output", str(output)) == 1  # the last row has no text

    table = pq.read_table(output)
    assert table["id"].to_pylist() == ["k0", "k1", "k2", "none"]
    *rows, failed = table["entities"].to_pylist()
    assert failed is None and table["error"].to_pylist()[3]
    assert all(map(is_equal, rows, expected))
    assert table["truncated"].to_pylist() == [False, False, True, None]


def test_options_change_the_spans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--aggregation-strategy", "none", "--ignore-label", "B-PER", "--ignore-label", "I-LOC"]
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        options: Any = {"aggregation_strategy": "none", "ignore_labels": ["B-PER", "I-LOC"]}
        (output,) = llm.entities(TEXTS[0], **options, use_tqdm=False)
        (windows,) = llm.entities(TEXTS[2], stride=4, use_tqdm=False)

    find_entities(folder, *words, TEXTS[0])
    find_entities(folder, "--stride", "4", TEXTS[2])

    row, long_row = map(json.loads, capsys.readouterr().out.splitlines())
    assert [entity["label"] for entity in row["entities"]] == [entity.label for entity in output.outputs.entities]
    assert [entity["start"] for entity in long_row["entities"]] == [entity.start for entity in windows.outputs.entities]
    assert long_row["truncated"] is False


def test_a_terminal_shows_labels_texts_and_scores(
    folder: Path,
    expected: list[list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    find_entities(folder, *TEXTS)

    shown = capsys.readouterr().out.splitlines()
    first = expected[0][0]
    assert shown[1].startswith(f"  {first['label']} {first['text']!r} {first['score']:.4f}")
    assert shown[3] == "  no entities, 2 tokens"
    assert "the rest of the text was cut off" in shown[5]


def test_what_is_wrong_for_every_text_is_reported_once(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_bert(tmp_path)

    assert find_entities(tmp_path, *TEXTS) == 1
    assert find_entities(folder, "--stride", "900", *TEXTS) == 1

    out, err = capsys.readouterr()
    unsupported, stride = [line for line in err.splitlines() if line.startswith("cenote: ")]
    assert out == ""
    assert "does not support entities" in unsupported
    assert "invalid stride 900" in stride


def test_npy_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert find_entities(folder, "--output", str(tmp_path / "out.npy"), *TEXTS) == 2
    assert "entities do not fit a .npy matrix; use --format jsonl or parquet" in capsys.readouterr().err
