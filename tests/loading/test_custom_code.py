"""Decoders that only their repository's code makes bidirectional: known ones are, unknown ones are warned about."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.loading.describe import describe_model
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, save_tiny

QWEN = {"AutoModel": "modeling_qwen.Qwen2Model", "AutoModelForCausalLM": "modeling_qwen.Qwen2ForCausalLM"}
GRIT = {"AutoModel": "modeling_gritlm7b.MistralModel", "AutoModelForCausalLM": "modeling_gritlm7b.MistralForCausalLM"}
STRANGER = {"AutoModel": "modeling_mine.Qwen2Model"}


def save(folder: Path, model: str, auto_map: dict[str, str], **changes: Any) -> list[torch.Tensor]:
    """Save a causal checkpoint with code of its own; return the states of the same model without its mask."""
    folder.mkdir(exist_ok=True)
    reference = save_tiny(folder, model, is_causal=False, **changes)
    change_config(folder, drop=("is_causal",), auto_map=auto_map)
    return compute_hidden_states(reference)


def embed(folder: Path, **options: Any) -> list[torch.Tensor]:
    with LLM(str(folder), dtype="float32", **options) as llm:
        return [output.outputs.data for output in llm.embed(SEQUENCES, use_tqdm=False)]


def assert_equal(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for mine, other in zip(actual, expected, strict=True):
        assert_close(mine, F.normalize(other, dim=-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("prefix", ["", "Alibaba-NLP/gte-Qwen2-1.5B-instruct--"])
def test_the_code_of_gte_qwen2_and_stella_is_bidirectional(
    prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = save(tmp_path, "Qwen2ForCausalLM", {name: prefix + code for name, code in QWEN.items()})

    assert_equal(embed(tmp_path), [rows[-1] for rows in states])
    assert "auto_map" not in caplog.text


def test_the_code_of_gritlm_is_bidirectional_and_pools_the_mean(tmp_path: Path) -> None:
    states = save(tmp_path, "MistralForCausalLM", GRIT, sliding_window=None)
    change_config(tmp_path, sliding_window=4)

    assert_equal(embed(tmp_path), [rows.mean(0) for rows in states])


@pytest.mark.parametrize(
    "name", ["KaLM-embedding-multilingual-mini-instruct-v2", "kalm_embedding_multilingual_mini_instruct_v2.5"]
)
def test_kalm_v2_is_bidirectional_by_its_name(name: str, tmp_path: Path) -> None:
    states = save(tmp_path / name, "Qwen2Model", STRANGER)

    assert_equal(embed(tmp_path / name), [rows[-1] for rows in states])


def test_is_causal_of_the_config_takes_precedence_over_known_code(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen2ForCausalLM")
    change_config(tmp_path, auto_map=QWEN, is_causal=True)

    assert_equal(embed(tmp_path), [rows[-1] for rows in compute_hidden_states(reference)])


def test_unknown_code_is_warned_about_in_one_line_with_the_way_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = save(tmp_path, "Qwen2Model", STRANGER)

    embed(tmp_path)

    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "\n" not in line
    assert line.startswith(f"{tmp_path / 'config.json'}: auto_map replaces Qwen2Model by modeling_mine.Qwen2Model")
    assert 'hf_overrides={"is_causal": false}' in line
    assert_equal(embed(tmp_path, hf_overrides={"is_causal": False}), [rows[-1] for rows in states])


@pytest.mark.parametrize(
    ("model", "auto_map"),
    [
        ("BertModel", {"AutoModel": "modeling_bert.BertModel"}),  # an encoder has no mask to remove
        ("Qwen3ForCausalLM", {"AutoModelForCausalLM": "modeling_qwen3.Qwen3ForCausalLM"}),  # embeds without its head
    ],
)
def test_other_code_is_not_warned_about(
    model: str, auto_map: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path, model)
    change_config(tmp_path, auto_map=auto_map)

    embed(tmp_path)

    assert "auto_map" not in caplog.text


def test_jina_reranker_v3_5_has_the_windows_of_its_card_unless_its_config_has_layer_types(tmp_path: Path) -> None:
    names = {"architectures": ["JinaForRanking"], "auto_map": {"AutoModel": "modeling.JinaForRanking"}}
    save_tiny(tmp_path, "Qwen3ForCausalLM", num_hidden_layers=28)
    change_config(tmp_path, drop=("layer_types",), _name_or_path="jinaai/jina-reranker-v3.5", **names)

    model = describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))
    spec = model.architecture.backbone
    assert [layer for layer in range(28) if not spec.is_local(layer)] == [3, 4, 8, 9, 13, 14, 18, 19, 23, 24, 27]
    assert spec.window == 1023
    (doubt,) = model.doubts
    assert 'hf_overrides={"layer_types": [...]}' in doubt and "\n" not in doubt

    change_config(tmp_path, layer_types=["full_attention"] * 28)
    model = describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu"))
    assert not any(model.architecture.backbone.local_layers)
    assert model.doubts == ()


def test_jina_reranker_v3_has_no_doubts(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3ForCausalLM")
    change_config(tmp_path, architectures=["JinaForRanking"], auto_map={"AutoModel": "modeling.JinaForRanking"})

    assert describe_model(EngineConfig.from_kwargs(str(tmp_path), device="cpu")).doubts == ()
