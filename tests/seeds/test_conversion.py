"""Runner, conversion by name or option, and where the pooling settings come from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest, LoadError, PoolerConfig, PoolingParams
from tests.seeds.checkpoints import EXACT, Models, data_of, encode, score
from tests.serving.server_process import ServerProcess
from tests.tiny import SEQUENCES, compute_hidden_states, compute_logits

RAW = PoolingParams(use_activation=False)
EMBED, CLASSIFY = ("embed", "token_embed"), ("classify", "token_classify")
REWARD_NAMES = ["Qwen3ForRewardModeling", "Qwen3RewardModel"]


def renamed(models: Models, name: str, architecture: str, **options: str) -> LLM:
    return models.load(name, hf_overrides={"architectures": [architecture]}, **options)


def embed(llm: LLM) -> Tensor:
    return torch.stack(data_of(llm.embed(SEQUENCES, use_tqdm=False)))


def hidden_states(models: Models) -> list[Tensor]:
    return compute_hidden_states(models.reference("qwen3 causal"))


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    assert [rows.shape for rows in actual] == [rows.shape for rows in expected]
    assert_close(torch.cat(actual), torch.cat(expected), atol=1e-4, rtol=1e-4)


# runner


def test_runner_pooling(models: Models, reranker_server: ServerProcess) -> None:
    explicit, default = models.load("qwen3", runner="pooling"), models.load("qwen3")

    assert_close(embed(explicit), embed(default))
    with reranker_server.client() as client:  # started with --runner pooling
        assert client.get("/health").status_code == 200


def test_runner_auto(models: Models) -> None:
    assert_close(embed(models.load("qwen3", runner="auto")), embed(models.load("qwen3", runner="pooling")))
    with pytest.raises(LoadError, match="runner.*generate"):
        models.load("qwen3", runner="generate")


# convert


def test_convert_embed(models: Models) -> None:
    llm = models.load("qwen3 causal", convert="embed")

    assert llm.supported_tasks == EMBED
    last = torch.stack([rows[-1] for rows in hidden_states(models)])
    assert_close(embed(llm), F.normalize(last, dim=-1), atol=1e-4, rtol=1e-4)


def test_convert_classify(models: Models) -> None:
    llm = models.load("qwen3 classifier", convert="classify")

    assert llm.supported_tasks == CLASSIFY
    assert len(llm.classify("the cat", use_tqdm=False)[0].outputs.probs) == 3
    with pytest.raises(LoadError, match=r"no score\.weight"):  # conversion invents no weights
        models.load("qwen3 causal", convert="classify")


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", *REWARD_NAMES])
def test_convert_reward(architecture: str, models: Models) -> None:
    llm = renamed(models, "qwen3 causal", architecture, convert="reward")

    assert_same(encode(llm, SEQUENCES, "reward"), hidden_states(models))


@pytest.mark.parametrize("architecture", REWARD_NAMES)
def test_llm_reward_on_reward_modeling_names(architecture: str, models: Models) -> None:
    llm = renamed(models, "qwen3 causal", architecture)

    assert_same(data_of(llm.reward(SEQUENCES, use_tqdm=False)), hidden_states(models))


# the table of architecture names


def assert_embeds(llm: LLM) -> None:
    assert llm.supported_tasks == EMBED
    assert_close(embed(llm).norm(dim=-1), torch.ones(len(SEQUENCES)))


@pytest.mark.parametrize("family", ["Qwen3", "Bert"])
def test_table_row_for_text_encoding_gives_embed(family: str, models: Models) -> None:
    assert_embeds(renamed(models, family.lower(), f"{family}ForTextEncoding"))


@pytest.mark.parametrize("family", ["Qwen3", "Bert"])
def test_table_row_embedding_model_gives_embed(family: str, models: Models) -> None:
    assert_embeds(renamed(models, family.lower(), f"{family}EmbeddingModel"))


@pytest.mark.parametrize("family", ["Qwen3", "Bert"])
def test_table_row_model_gives_embed(family: str, models: Models) -> None:
    assert_embeds(renamed(models, family.lower(), f"{family}Model"))


@pytest.mark.parametrize("architecture", REWARD_NAMES)
def test_table_row_for_reward_modeling_gives_embed(architecture: str, models: Models) -> None:
    llm = renamed(models, "qwen3 causal", architecture)

    assert set(EMBED) <= set(llm.supported_tasks)
    last = torch.stack([rows[-1] for rows in hidden_states(models)])
    assert_close(embed(llm), F.normalize(last, dim=-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", ["Qwen3ForSequenceClassification", "Qwen3ForTextClassification"])
def test_table_row_for_classification_gives_classify_and_score(architecture: str, models: Models) -> None:
    one_label = renamed(models, "qwen3 one label", architecture)

    assert one_label.supported_tasks == (*CLASSIFY, "score")
    assert len(score(one_label, "the cat", ["a dog", "a cat"])) == 2
    assert renamed(models, "qwen3 classifier", architecture).supported_tasks == CLASSIFY


def test_table_row_classification_model_gives_classify(models: Models) -> None:
    llm = renamed(models, "qwen3 classifier", "Qwen3ClassificationModel")

    assert llm.supported_tasks == CLASSIFY
    assert sum(llm.classify("the cat", use_tqdm=False)[0].outputs.probs) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "tasks"),
    [("bert", set(EMBED)), ("bert classifier", set(CLASSIFY)), ("bge-reranker", {*CLASSIFY, "score"})],
)
def test_pooler_get_supported_tasks(name: str, tasks: set[str], models: Models) -> None:
    llm = models.load(name)

    assert llm.engine.model.pooler.get_supported_tasks() == tasks
    assert set(llm.supported_tasks) == tasks


# defaults of converted models


def test_converted_embed_default_is_last_and_normalised(models: Models) -> None:
    llm = models.load("qwen3 causal")

    last = torch.stack([rows[-1] for rows in hidden_states(models)])
    assert abs(float(last[0].norm()) - 1) > 0.1
    assert_close(embed(llm), F.normalize(last, dim=-1), atol=1e-4, rtol=1e-4)


def test_converted_classify_default_is_last_and_softmax(models: Models) -> None:
    llm = models.load("qwen3 classifier")

    logits = compute_logits(models.reference("qwen3 classifier"))  # Transformers classifies the last token
    assert_same(data_of(llm.classify(SEQUENCES, use_tqdm=False)), [row.softmax(-1) for row in logits])
    assert_same(data_of(llm.classify(SEQUENCES, pooling_params=RAW, use_tqdm=False)), logits)


def test_converted_reward_default_is_all_without_normalisation_and_softmax(models: Models) -> None:
    llm = models.load("qwen3 causal", convert="reward")

    rows = data_of(llm.reward(SEQUENCES, use_tqdm=False))
    assert [len(each) for each in rows] == [len(ids) for ids in SEQUENCES]
    assert_same(rows, hidden_states(models))
    norms = torch.cat(rows).norm(dim=-1)
    assert bool((abs(norms - 1) > 0.1).all())


# precedence


def pool(models: Models, method: str) -> Tensor:
    """Pool the hidden states of the tiny BERT and normalise."""
    states = compute_hidden_states(models.reference("mean bert"))
    pooled = [{"MEAN": rows.mean(dim=0), "CLS": rows[0], "LAST": rows[-1]}[method] for rows in states]
    return F.normalize(torch.stack(pooled), dim=-1)


def test_modules_json_takes_priority_over_the_models_default(models: Models, tmp_path: Path) -> None:
    without_files = models.copy("mean bert", tmp_path)
    (without_files / "modules.json").unlink()

    with LLM(str(without_files), **EXACT) as plain:
        assert_close(embed(plain), pool(models, "CLS"), atol=1e-4, rtol=1e-4)
    llm = models.load("mean bert", pooler_config={"normalize": True})
    assert_close(embed(llm), pool(models, "MEAN"), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", ["CLS", "LAST"])
def test_pooler_config_takes_priority_over_both(method: str, models: Models) -> None:
    llm = models.load_as_served(
        "mean bert", "--pooler-config", f'{{"pooling_type": "{method}", "normalize": true}}', "--dtype", "float32"
    )

    assert_close(embed(llm), pool(models, method), atol=1e-4, rtol=1e-4)


def test_override_pooler_config_flag(embedding_server: ServerProcess) -> None:
    with embedding_server.client() as client:
        reply = client.post("/v1/embeddings", json={"input": "red " * 500})  # the model reads 256 tokens

    assert reply.status_code == 200, reply.text  # the flag turned chunked processing on
    assert reply.json()["usage"]["prompt_tokens"] == 502


@pytest.mark.parametrize("form", [PoolerConfig, dict])
def test_override_pooler_config_option(form: type, models: Models) -> None:
    llm = models.load("mean bert", override_pooler_config=form(pooling_type="LAST", normalize=True))

    assert_close(embed(llm), pool(models, "LAST"), atol=1e-4, rtol=1e-4)
    with pytest.raises(BadRequest, match="pooler_config"):
        models.load("mean bert", override_pooler_config=form(pooling_type="LAST"), pooler_config={"normalize": True})
