"""The samples of the guide for `LLM`, on tiny models of the same architecture."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from cenote import LLM, BadRequest
from tests.seeds.checkpoints import GREETING, Models, data_of

QUESTION, ANSWER = "What is the capital of France?", "The capital of Brazil is Brasilia."


def test_sample_embed_e5_small(llm: LLM) -> None:
    (output,) = llm.embed(GREETING)

    embeds = output.outputs.embedding
    assert len(embeds) == 384 and all(type(number) is float for number in embeds)


def test_sample_embed_e5_mistral_with_task_embed(models: Models) -> None:
    llm = models.load("qwen3 causal", task="embed")

    (output,) = llm.embed(GREETING)

    assert len(output.outputs.embedding) == 32
    assert sum(number**2 for number in output.outputs.embedding) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("options", [{"runner": "pooling"}, {"task": "classify"}])
def test_sample_classify_apeach(options: dict[str, str], models: Models) -> None:
    (output,) = models.load("apeach", **options).classify(GREETING)

    probs = output.outputs.probs
    assert len(probs) == 2 and sum(probs) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("options", [{"runner": "pooling"}, {"task": "score"}])
def test_sample_score_bge_reranker(options: dict[str, str], models: Models) -> None:
    (output,) = models.load("bge-reranker", **options).score(QUESTION, ANSWER)

    assert type(output.outputs.score) is float and 0 < output.outputs.score < 1


def test_sample_reward_internlm2(models: Models) -> None:
    llm = models.load("internlm2 reward", runner="pooling", trust_remote_code=True)

    (output,) = llm.reward(GREETING)

    data = output.outputs.data
    assert data.shape[0] == len(output.prompt_token_ids)
    assert float(data.min()) > 0 and float(data.max()) < 1  # sigmoid is the model's activation


def test_sample_encode_of_a_reward_model_without_a_task(models: Models) -> None:
    llm = models.load("math rm", task="reward")

    (output,) = llm.encode(GREETING)

    assert output.outputs.data.shape[0] == len(output.prompt_token_ids)
    assert_close(data_of([output]), data_of(llm.reward(GREETING)))


def test_sample_encode_with_task_embed(llm: LLM) -> None:
    (output,) = llm.encode(GREETING, pooling_task="embed")
    (same,) = llm.embed(GREETING)

    assert output.outputs.data.shape == (384,)
    assert_close(output.outputs.data, torch.tensor(same.outputs.embedding))


def test_encode_without_a_task_lists_the_choices(llm: LLM) -> None:
    with pytest.raises(BadRequest) as caught:
        llm.encode(GREETING)

    choices = ["LLM.embed", "LLM.classify", "LLM.score", "LLM.reward", '"token_classify"', '"token_embed"', '"plugin"']
    assert [choice for choice in choices if choice not in caught.value.message] == []
    assert "pooling_task required for `LLM.encode`" in caught.value.message
