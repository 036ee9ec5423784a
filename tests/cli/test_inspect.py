"""`cenote inspect` shows every resolved setting of a model and its source."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from cenote import LLM
from cenote.cli.main import main
from cenote.errors import LoadError
from cenote.loading.weights import CheckpointWeights
from tests.kernels.levels import LEVELS, needs_level
from tests.layouts.builders import st_formats
from tests.tiny import change_config, tiny_bert, tiny_qwen3_classifier


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


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    assert main(["inspect", *arguments, "--json"]) == 0
    settings: dict[str, dict[str, Any]] = json.loads(capsys.readouterr().out)
    return settings


def test_the_settings_of_the_default_model_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    table = inspect(capsys)

    assert table["pooling"] == ("MEAN", "1_Pooling/config.json")
    assert table["activation"] == ("normalize", "modules.json")
    assert table["max tokens"] == ("256", "sentence_bert_config.json")
    assert table["tasks"][0] == "embed, token_embed"


def test_a_long_doubt_does_not_widen_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)

    assert main(["inspect", str(tmp_path)]) == 0

    doubt, *rows = capsys.readouterr().out.splitlines()
    assert doubt.startswith("doubts ") and len(doubt) > 200
    columns = {row.index("  from ") for row in rows if len(row.partition("  from ")[0]) <= 80}
    assert len(columns) == 1 and max(columns) < 110


@pytest.mark.parametrize("build", [st_formats.static_retrieval, st_formats.potion, st_formats.m2v_base_output])
def test_sizes_of_static_embeddings_are_read_without_their_data(
    build: Callable[[Path], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(CheckpointWeights, "get", refuse)
    build(tmp_path)

    settings = inspect_json(capsys, str(tmp_path))

    assert settings["dimensions"]["value"] == 24
    assert settings["dimensions"]["source"].startswith("shape of embedding")
    assert settings["layers"]["value"] == [0, 24]


def test_without_weights_sizes_of_static_embeddings_are_those_of_the_config_or_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    st_formats.potion(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.unlink()
    change_config(tmp_path, hidden_dim=24)

    settings = inspect_json(capsys, str(tmp_path))

    assert settings["dimensions"] == {"value": 24, "source": "config.json hidden_dim"}
    assert settings["pooling"]["value"] == "MEAN" and settings["normalize"]["value"] is True
    for changes in ({"hidden_dim": "24"}, {"hidden_dim": 0}, {"hidden_dim": None}):
        change_config(tmp_path, **changes)
        assert inspect_json(capsys, str(tmp_path))["dimensions"]["value"] == "unknown"


def test_without_weights_and_config_sizes_of_static_embeddings_are_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    st_formats.static_retrieval(tmp_path)
    (tmp_path / "0_StaticEmbedding/model.safetensors").unlink()

    table = inspect(capsys, str(tmp_path))

    assert table["dimensions"] == ("unknown", "the weights, which are missing")
    assert table["layers"] == ("0 x unknown", "the weights, which are missing")
    settings = inspect_json(capsys, str(tmp_path))
    assert settings["dimensions"]["value"] == "unknown" and settings["doubts"]["value"] == []
    with pytest.raises(LoadError, match="has no weights"):
        LLM(str(tmp_path), device="cpu")


def test_a_flag_is_named_as_the_source_of_what_it_changed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    table = inspect(
        capsys, str(tmp_path), "--pooler-config.pooling_type", "LAST", "--max-model-len", "16", "--dtype", "float32"
    )

    assert table["pooling"] == ("LAST", "pooler config")
    assert table["activation"] == ("normalize", "default")
    assert table["max tokens"][0] == "16" and "max_model_len" in table["max tokens"][1]
    assert table["dtype"] == ("float32", "dtype")


def test_deterministic_is_shown_if_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    assert inspect(capsys, str(tmp_path), "--deterministic")["deterministic"][0] == "results do not depend on the batch"
    assert "deterministic" not in inspect(capsys, str(tmp_path))


@needs_level
def test_the_level_of_the_cpu_kernels_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_CPU_LEVEL", LEVELS[0])

    assert inspect(capsys, str(tmp_path), "--device", "cpu")["CPU level"] == (LEVELS[0], "instructions of this CPU")


def test_the_dtype_that_the_cpu_computes_in_is_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_CPU_LEVEL", "baseline")

    table = inspect(capsys, str(tmp_path), "--device", "cpu", "--dtype", "half", "--quantization", "int8")

    assert "CPU level" not in table
    assert table["dtype"] == ("float32", "dtype=float16, run in float32 on this CPU")
    assert table["quantization"] == (
        "int8",
        "quantization=int8, weights only: this CPU has no fast int8 kernel",
    )


def test_an_unknown_cpu_level_ends_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    monkeypatch.setenv("CENOTE_CPU_LEVEL", "486")

    assert main(["inspect", str(tmp_path)]) != 0
    assert "invalid CENOTE_CPU_LEVEL='486'" in capsys.readouterr().err


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


def test_json_holds_value_and_source_of_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--json"]) == 0

    settings = json.loads(capsys.readouterr().out)
    assert settings["pooling"] == {"value": "MEAN", "source": "1_Pooling/config.json"}
    assert settings["normalize"] == {"value": True, "source": "modules.json"}
    assert settings["dimensions"]["value"] == 384
    assert settings["score_type"]["value"] == "bi-encoder"
    assert settings["tokens_around_text"]["value"] == ["[CLS]", "[SEP]"]
    assert settings["special_tokens"]["value"]["mask_token"] == "[MASK]"
    assert settings["doubts"]["value"] == []
    assert all(set(row) == {"value", "source"} for row in settings.values())


def test_json_and_text_are_made_of_the_same_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tiny_qwen3_classifier(tmp_path, num_labels=3)
    change_config(tmp_path, drop=("id2label", "label2id"), num_labels=3)

    table = inspect(capsys, str(tmp_path))
    assert main(["inspect", str(tmp_path), "--json"]) == 0

    settings = json.loads(capsys.readouterr().out)
    assert settings["labels"]["value"] == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert table["label names"] == ("LABEL_0, LABEL_1, LABEL_2", "default of Transformers")
    for key in ("architecture", "pooling", "activation", "attention", "dtype"):
        assert table[key] == (settings[key]["value"], settings[key]["source"])


def test_a_hub_name_is_inspected_without_its_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_bert(tmp_path)
    requested = []

    def snapshot_download(name: str, *, allow_patterns: list[str], **_: object) -> str:
        requested.append((name, allow_patterns))
        return str(tmp_path)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)

    assert inspect(capsys, "org/name")["model"][0] == "org/name"

    ((name, patterns),) = requested
    assert name == "org/name" and "*.json" in patterns
    assert not [pattern for pattern in patterns if pattern.endswith((".safetensors", ".bin"))]


def test_a_tokenizer_that_cannot_be_loaded_is_a_doubt_and_comes_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")

    assert main(["inspect", str(tmp_path)]) == 0

    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("doubts") and "tokenizer.json" in first


def test_a_broken_config_is_one_line_and_status_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["UnknownModel"]}))

    assert main(["inspect", str(tmp_path)]) == 78

    message = capsys.readouterr().err
    assert message.count("\n") == 1 and "UnknownModel" in message and "hf_overrides" in message


def test_the_fingerprint_is_that_of_the_loaded_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)
    settings = inspect_json(capsys, str(tmp_path), "--checksums", "--device", "cpu")

    with LLM(str(tmp_path), device="cpu") as llm:
        fingerprint = llm.engine.model.fingerprint
    assert fingerprint is not None
    assert settings["fingerprint"]["value"] == str(fingerprint)
    assert settings["fingerprint_parts"]["value"] == fingerprint.parts
    digest = hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert settings["checksums"]["value"] == {"model.safetensors": digest}


def test_the_fingerprint_is_unknown_without_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()

    assert inspect(capsys, str(tmp_path))["fingerprint"] == ("unknown", "the weights, which are missing")
