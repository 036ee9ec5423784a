"""Encoders without files of Sentence Transformers: known models follow their cards, others get a doubt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize
from torch.testing import assert_close

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import compute_fingerprint, list_differing_parts
from cenote.loading.model_description import ModelDescription
from tests.tiny import TEXTS, change_config, save_tiny, tiny_bert

SUP, UNSUP = "sup-simcse-bert-base-uncased", "unsup-simcse-bert-base-uncased"


def make_folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def described(folder: Path, **options: Any) -> ModelDescription:
    return describe_model(EngineConfig.from_kwargs(str(folder), device="cpu", **options))


def embed(folder: Path, **options: Any) -> tuple[torch.Tensor, list[list[int]]]:
    with LLM(str(folder), dtype="float32", device="cpu", **options) as llm:
        outputs = llm.embed(TEXTS, use_tqdm=False)
    return torch.stack([output.outputs.data for output in outputs]), [output.prompt_token_ids for output in outputs]


def run(model: Any, ids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the states of the first tokens, and the output of the pooler."""
    with torch.inference_mode():
        outputs = [model(input_ids=torch.tensor([row])) for row in ids]
    return torch.cat([output.last_hidden_state[:, 0] for output in outputs]), torch.cat(
        [output.pooler_output for output in outputs]
    )


@pytest.mark.parametrize("name", ["MedCPT-Query-Encoder", "MedCPT-Article-Encoder", "specter2_base"])
def test_the_first_token_as_it_is(name: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, name)
    model = tiny_bert(folder)

    vectors, ids = embed(folder)

    assert_close(vectors, run(model, ids)[0], atol=1e-5, rtol=0)
    assert described(folder).doubts == ()


def test_queries_of_medcpt_have_64_tokens(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, "MedCPT-Query-Encoder")
    tiny_bert(folder, max_position_embeddings=128)

    found = described(folder).max_length

    assert (found.value, found.source) == (64, "the name MedCPT-Query-Encoder")


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_supervised_simcse_has_the_output_of_the_pooler(family: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path, f"sup-simcse-{family}-base")
    model = save_tiny(folder, "BertModel" if family == "bert" else "RobertaModel")

    vectors, ids = embed(folder)

    first, pooled = run(model, ids)
    assert_close(vectors, normalize(pooled, dim=-1), atol=1e-5, rtol=0)
    assert (vectors - normalize(first, dim=-1)).abs().max() > 0.01


def test_unsupervised_simcse_has_the_first_token(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, UNSUP)
    model = tiny_bert(folder)

    vectors, ids = embed(folder)

    assert_close(vectors, normalize(run(model, ids)[0], dim=-1), atol=1e-5, rtol=0)


def test_the_pooler_is_not_applied_to_tokens_nor_to_another_pooling(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, SUP)
    model = tiny_bert(folder)

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        (output,) = llm.encode(TEXTS[:1], pooling_task="token_embed", use_tqdm=False)
    vectors, ids = embed(folder, pooler_config={"pooling_type": "MEAN"})

    with torch.inference_mode():
        states = [model(input_ids=torch.tensor([row])).last_hidden_state[0] for row in ids]
    assert_close(output.outputs.data, normalize(states[0], dim=-1), atol=1e-5, rtol=0)
    assert_close(vectors, normalize(torch.stack([rows.mean(0) for rows in states]), dim=-1), atol=1e-5, rtol=0)


def test_a_copy_under_another_name_is_recognised_by_its_origin(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, _name_or_path=f"princeton-nlp/{SUP}")

    pooling = described(tmp_path).plan.seq_pooling_types

    assert (pooling.value, pooling.source) == (
        ("CLS",),
        f"config.json _name_or_path princeton-nlp/{SUP}, with the pooler",
    )


def test_the_use_of_the_pooler_changes_the_fingerprint(tmp_path: Path) -> None:
    fingerprints = []
    for name in (SUP, UNSUP):
        folder = make_folder(tmp_path, name)
        tiny_bert(folder)
        fingerprints.append(str(compute_fingerprint(described(folder), EngineConfig(model=str(folder)))))

    assert list_differing_parts(*fingerprints) == ["pooling"]


def test_files_of_sentence_transformers_come_before_the_name(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, SUP)
    tiny_bert(folder)
    (folder / "modules.json").write_text(
        '[{"path": "", "type": "sentence_transformers.models.Transformer"},'
        ' {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]'
    )
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"word_embedding_dimension": 32, "pooling_mode_mean_tokens": true}')

    model = described(folder)

    assert model.plan.seq_pooling_types.value == ("MEAN",) and model.architecture.projection is None
    assert model.doubts == ()


def test_an_unknown_encoder_keeps_the_default_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_bert(tmp_path)

    vectors, ids = embed(tmp_path)

    assert_close(vectors, normalize(run(model, ids)[0], dim=-1), atol=1e-5, rtol=0)
    doubt = (
        f"{tmp_path / 'config.json'}: no file says how BertModel makes embeddings; pooling is CLS, as in vLLM. "
        "If the model's page pools otherwise, set pooler_config, such as "
        '{"pooling_type": "MEAN"}; setting it ends this warning'
    )
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [doubt]
    assert described(tmp_path).doubts == (doubt,)
    assert described(tmp_path, pooler_config={"pooling_type": "CLS"}).doubts == ()
