"""`cenote inspect` shows every resolved setting of a model and its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cenote.cli.main import main
from tests.tiny import tiny_bert, tiny_qwen3_classifier


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[str, str]]:
    """Run `cenote inspect` and return value and source by name, as printed."""
    assert main(["inspect", *arguments]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if " from " in line]
    table = {}
    for line in rows:
        setting, _, source = line.rpartition("  from ")
        name, _, value = setting.partition("  ")
        table[name.strip()] = (value.strip(), source)
    return table


def test_the_settings_of_the_default_model_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table = inspect(capsys)

    assert table["pooling"] == ("MEAN", "1_Pooling/config.json")
    assert table["activation"] == ("normalize", "modules.json")
    assert table["max tokens"] == ("256", "sentence_bert_config.json")
    assert table["tasks"][0] == "embed, token_embed"


def test_a_flag_is_named_as_the_source_of_what_it_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    table = inspect(
        capsys, str(tmp_path), "--pooler-config.pooling_type", "LAST", "--max-model-len", "16", "--dtype", "float32"
    )

    assert table["pooling"] == ("LAST", "pooler config")
    assert table["activation"] == ("normalize", "default")
    assert table["max tokens"][0] == "16" and "max_model_len" in table["max tokens"][1]
    assert table["dtype"] == ("float32", "dtype")


def test_the_dtype_that_the_cpu_computes_in_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_MAX_CPU_ISA", "baseline")

    table = inspect(capsys, str(tmp_path), "--device", "cpu", "--dtype", "half", "--quantization", "int8")

    assert table["dtype"] == ("float32", "dtype=float16, run in float32 on this CPU")
    assert table["quantization"] == ("none", "quantization=int8, for which this CPU has no fast kernel")


def test_an_unknown_cpu_level_ends_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_MAX_CPU_ISA", "486")

    assert main(["inspect", str(tmp_path)]) != 0
    assert "invalid CENOTE_MAX_CPU_ISA='486'" in capsys.readouterr().err


def test_a_classifier_shows_its_labels_and_activation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_qwen3_classifier(tmp_path, num_labels=3)

    table = inspect(capsys, str(tmp_path))

    assert table["labels"][0] == "3"
    assert table["pooling"][0] == "LAST"
    assert table["attention"][0] == "causal"


def test_no_weights_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    assert inspect(capsys, str(tmp_path))["architecture"][0] == "BertModel"


def test_a_broken_config_is_one_line_and_status_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["UnknownModel"]}))

    assert main(["inspect", str(tmp_path)]) == 78

    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "UnknownModel" in message and "hf_overrides" in message
