"""`cenote models --check` tells by what evidence a model is right, what is doubtful, and what to do if refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cenote.cli.main import main
from cenote.models.catalog import read_checked_models
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.table import read_table
from tests.layouts.tokenizers import write_json
from tests.tiny import change_config, tiny_bert

MODEL = "BAAI/bge-small-en-v1.5"


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The files of a model of the table, in a folder of its name."""
    (model,) = (row for row in read_table() if row.name == MODEL)
    folder = tmp_path / "bge-small-en-v1.5"
    folder.mkdir()
    write_checkpoint(folder, model.layout, tiny=False)
    return folder


def check(capsys: pytest.CaptureFixture[str], folder: Path) -> tuple[int, str, list[str]]:
    """Return exit status, verdict and the lines below it."""
    status = main(["models", "--check", str(folder)])
    first, *lines = capsys.readouterr().out.splitlines()
    return status, first.rpartition(": ")[2], lines


def test_a_model_of_the_table_is_right_by_test(capsys: pytest.CaptureFixture[str], published: Path) -> None:
    status, verdict, lines = check(capsys, published)

    assert (status, verdict) == (0, "right by test")
    evidence = "true layout, files from public sources; outputs compared with Sentence Transformers"
    assert lines[0] == f"  table entry: {MODEL} ({evidence})"
    assert "  pooling       CLS" in lines


def test_a_model_of_that_name_with_other_settings_is_doubtful(
    capsys: pytest.CaptureFixture[str], published: Path
) -> None:
    write_json(published / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})

    status, verdict, lines = check(capsys, published)

    assert (status, verdict) == (1, "doubtful")
    assert lines[0] == f"  pooling is MEAN here (from 1_Pooling/config.json), CLS in the table entry {MODEL}"


def test_another_model_with_the_same_layout_is_right_by_architecture(
    capsys: pytest.CaptureFixture[str], published: Path
) -> None:
    status, verdict, lines = check(capsys, published.rename(published.with_name("another")))

    assert (status, verdict) == (0, "right by architecture")
    assert lines[0].startswith("  BertModel was compared with Transformers")
    assert "same layout as table entry" in lines[1]


def test_a_layout_that_nobody_compared_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, architectures=["BertForPreTraining"])

    status, verdict, lines = check(capsys, tmp_path)

    assert (status, verdict) == (0, "right by architecture")
    assert any("no table entry has the same layout" in line for line in lines)


def test_a_tokenizer_that_cannot_be_loaded_is_a_doubt(capsys: pytest.CaptureFixture[str], published: Path) -> None:
    (published / "tokenizer.json").write_text("{}")

    status, verdict, lines = check(capsys, published)

    assert (status, verdict) == (1, "doubtful")
    assert "tokenizer.json" in lines[0]


def test_a_model_that_does_not_load_is_refused_with_its_message(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["UnknownModel"]}))

    status, verdict, lines = check(capsys, tmp_path)

    assert (status, verdict) == (78, "refused")
    assert len(lines) == 1 and "UnknownModel" in lines[0] and "hf_overrides" in lines[0]


def test_the_package_knows_at_least_150_models() -> None:
    models = read_checked_models()

    assert len(models) >= 150
    assert {model.check for model in models} >= {"real weights", "true layout", "architecture only"}


def test_a_check_and_a_list_of_architectures_are_printed_as_json(
    capsys: pytest.CaptureFixture[str], published: Path
) -> None:
    status, verdict, _ = check(capsys, published)

    assert main(["models", "--check", str(published), "--json"]) == status
    checked = json.loads(capsys.readouterr().out)
    assert main(["models", "granite", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)

    assert checked["verdict"] == verdict and checked["settings"]["architecture"]
    assert rows and all("granite" in f"{row['architecture']} {row['models']}".lower() for row in rows)
