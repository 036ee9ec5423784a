"""Reward models, from checkpoints to routes: rows, values and activations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, PoolerConfig, PoolingParams
from cenote.errors import BadRequest, LoadError, Unsupported
from tests.api.app_client import add_chat_template, assert_refused, load_llm, make_client
from tests.models.parity import RAW, encoded
from tests.models.reward_models import (
    BAD,
    GOOD,
    STEP,
    Head,
    as_internlm2,
    at_steps,
    internlm2,
    outcome,
    process,
    rewrite,
)
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, compute_logits, save_tiny, tiny_qwen3_causal

SHEPHERD = {"pooling_type": "STEP", "step_tag_id": STEP, "returned_token_ids": [GOOD, BAD]}


def rows_of(
    llm: LLM, params: PoolingParams | None = None, prompts: Sequence[Sequence[int]] = SEQUENCES
) -> list[Tensor]:
    return [output.outputs.data for output in llm.reward(prompts, pooling_params=params, use_tqdm=False)]


def pooled(llm: LLM, **body: Any) -> list[Tensor]:
    reply = make_client(llm).post("/pooling", json={"input": SEQUENCES, **body})
    assert reply.status_code == 200, reply.text
    return [torch.tensor(item["data"]) for item in reply.json()["data"]]


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for mine, reference in zip(actual, expected, strict=True):
        assert_close(mine.reshape(reference.shape), reference, atol=1e-4, rtol=0)


def same(x: Tensor) -> Tensor:
    return x


# rewards per token


@pytest.mark.parametrize(("make", "activation"), [(outcome, same), (internlm2, torch.sigmoid)])
def test_a_reward_for_every_token_is_the_same_by_every_way_to_ask(
    make: Callable[[Path], list[Tensor]], activation: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    raw = make(tmp_path)
    expected = [activation(rows) for rows in raw]

    with load_llm(tmp_path) as llm:
        assert llm.pooling_task == "token_classify"
        assert_same(rows_of(llm), expected)
        for task in ("token_classify", "reward"):
            assert_same(encoded(llm, task), expected)
        assert_same(pooled(llm), expected)
        assert_same(pooled(llm, task="token_classify", use_activation=True), [rows.sigmoid() for rows in raw])
        # the reward of the sequence is the raw value of the last token
        assert_same([rows[-1] for rows in rows_of(llm, RAW)], [rows[-1] for rows in raw])


@pytest.mark.parametrize("make", [outcome, internlm2])
@pytest.mark.parametrize("options", [{"convert": "reward"}, {"task": "reward"}, {"runner": "pooling"}])
def test_older_options_load_the_same_reward_model(
    make: Callable[[Path], list[Tensor]], options: dict[str, Any], tmp_path: Path
) -> None:
    raw = make(tmp_path)

    with load_llm(tmp_path, trust_remote_code=True, **options) as llm:
        assert_same(rows_of(llm, RAW), raw)


def test_the_steps_of_a_process_reward_model_end_at_its_own_token(tmp_path: Path) -> None:
    prompts = [[7, 8, 151651, 9, 10, 151651], [7, 8], [151651]]
    reference = save_tiny(tmp_path, "Qwen2ForCausalLM", vocab_size=151660)
    score = Head(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    rewrite(tmp_path, lambda tensors: tensors | score.tensors("score"), architectures=["Qwen2ForProcessRewardModel"])
    with torch.inference_mode():
        states = compute_hidden_states(reference, prompts)
        judged = [score(rows).softmax(-1) for rows in states]

    with load_llm(tmp_path) as llm:
        actual = rows_of(llm, prompts=prompts)
        vectors = encoded(llm, "token_embed", RAW, prompts)
        reply = make_client(llm).post("/pooling", json={"input": prompts}).json()

    ends = [torch.tensor(ids) == 151651 for ids in prompts]
    expected = [rows[is_end] for rows, is_end in zip(judged, ends, strict=True)]
    assert_same(vectors, [rows[is_end] for rows, is_end in zip(states, ends, strict=True)])
    assert [len(rows) for rows in actual] == [2, 0, 1]
    assert_same(actual, expected)
    assert reply["data"][1]["data"] == []
    assert_same([torch.tensor(item["data"]) for item in reply["data"]], expected)


def test_the_steps_may_end_elsewhere_and_one_column_may_be_enough(tmp_path: Path) -> None:
    raw = process(tmp_path)

    with load_llm(tmp_path, pooler_config=PoolerConfig(step_tag_id=STEP)) as llm:
        assert_same(rows_of(llm), at_steps([rows.softmax(-1) for rows in raw]))
        assert_same(rows_of(llm, PoolingParams(step_tag_id=50)), at_steps([rows.softmax(-1) for rows in raw], 50))
        right = PoolingParams(returned_token_ids=[1], use_activation=False)
        assert_same(rows_of(llm, right), at_steps([rows[:, 1:] for rows in raw]))
    with load_llm(tmp_path, pooler_config=PoolerConfig(pooling_type="ALL")) as llm:
        assert_same(rows_of(llm), [rows.softmax(-1) for rows in raw])


# reward models without a head of their own


REWARD_NAMES = ("Qwen3ForRewardModeling", "Qwen3RewardModel")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"convert": "reward"}, "Qwen3ForCausalLM"),
        ({"task": "reward"}, "Qwen3ForCausalLM"),
        *(({}, name) for name in REWARD_NAMES),
        *(({"task": "reward"}, name) for name in REWARD_NAMES),
    ],
)
def test_without_a_reward_head_rewards_are_the_hidden_states_of_all_tokens(
    options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    expected = compute_hidden_states(tiny_qwen3_causal(tmp_path))
    change_config(tmp_path, architectures=[name])

    with load_llm(tmp_path, **options) as llm:
        assert llm.pooling_task == "token_classify"
        assert_same(rows_of(llm), expected)
        assert_same(rows_of(llm, PoolingParams(use_activation=True)), expected)  # no softmax
        assert_same(encoded(llm, "reward"), expected)
        assert_same(pooled(llm), expected)
        assert {"embed", "token_embed"} <= set(llm.supported_tasks)
        (vector,) = llm.embed([SEQUENCES[0]], use_tqdm=False)
        assert_close(vector.outputs.data, F.normalize(expected[0][-1], dim=-1), atol=1e-5, rtol=0)


def test_encode_needs_no_task_if_the_deprecated_option_task_names_one(tmp_path: Path) -> None:
    expected = outcome(tmp_path)

    with load_llm(tmp_path, task="reward") as llm:
        assert_same([output.outputs.data for output in llm.encode(SEQUENCES, use_tqdm=False)], expected)
    with load_llm(tmp_path) as llm, pytest.raises(BadRequest, match="pooling_task required for `LLM.encode`"):
        llm.encode(SEQUENCES, use_tqdm=False)


@pytest.mark.parametrize("name", REWARD_NAMES)
def test_a_linear_reward_head_in_the_checkpoint_is_used(name: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen3ForSequenceClassification", num_labels=1)
    head = reference.score
    change_config(tmp_path, architectures=[name])

    with load_llm(tmp_path) as llm:
        assert llm.supported_tasks == ("token_classify", "token_embed", "embed")
        actual = rows_of(llm)

    with torch.inference_mode():
        assert_same(actual, [head(rows) for rows in compute_hidden_states(reference)])


def test_embeddings_of_a_reward_model_are_normalised_by_default(tmp_path: Path) -> None:
    save_tiny(tmp_path, "LlamaForSequenceClassification", num_labels=1)
    change_config(tmp_path, architectures=["LlamaForRewardModeling"])

    with load_llm(tmp_path) as llm:
        assert llm.model_config.pooler_config.pooling_type == "ALL"
        assert llm.model_config.pooler_config.use_activation is False
        params = PoolingParams()
        params.verify("embed", llm.model_config)
        (output,) = llm.encode([SEQUENCES[0]], params, pooling_task="embed", use_tqdm=False)
    assert float(output.outputs.data.norm()) == pytest.approx(1, abs=1e-5)


def test_a_reward_head_is_found_behind_the_prefix_of_the_backbone(tmp_path: Path) -> None:
    expected = compute_hidden_states(save_tiny(tmp_path, "LlamaForCausalLM"))
    weight = torch.randn(1, 32)
    rewrite(
        tmp_path,
        lambda tensors: tensors | {"model.score.weight": weight},
        architectures=["LlamaForRewardModeling"],
        num_labels=1,
    )

    with load_llm(tmp_path) as llm:
        assert_same(rows_of(llm), [rows @ weight.T for rows in expected])


def test_an_unknown_reward_head_is_refused_by_name(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)
    head = Head(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    rewrite(tmp_path, lambda tensors: tensors | head.tensors("score"), architectures=["Qwen3ForRewardModeling"])

    with pytest.raises(LoadError, match=r"has a reward head that is not supported \(score\.0\.bias"):
        load_llm(tmp_path)
    with load_llm(tmp_path, convert="embed") as llm:
        assert llm.supported_tasks == ("embed", "token_embed")


def test_the_transformers_backend_returns_hidden_states_too(tmp_path: Path) -> None:
    expected = compute_hidden_states(tiny_qwen3_causal(tmp_path))

    with load_llm(tmp_path, task="reward", model_impl="transformers") as llm:
        assert_same(rows_of(llm), expected)


# sequence rewards


@pytest.mark.parametrize(
    ("model", "activation"),
    [
        ("LlamaForSequenceClassification", torch.sigmoid),
        ("Qwen3ForSequenceClassification", torch.sigmoid),
        ("JambaForSequenceClassification", same),
    ],
)
def test_a_conversation_gets_one_reward(model: str, activation: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, model, num_labels=1)
    add_chat_template(tmp_path)
    messages = [{"role": "who", "content": "how big is it?"}, {"role": "one", "content": "big"}]
    with load_llm(tmp_path) as llm:
        client = make_client(llm)
        tokens = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["tokens"]
        (raw,) = compute_logits(reference, [tokens])
        told = [
            client.post("/classify", json={"messages": messages} | asked).json()["data"][0]["probs"]
            for asked in ({}, {"use_activation": False}, {"use_activation": True})
        ]
        (offline,) = llm.classify([tokens], use_tqdm=False)
        last = rows_of(llm, RAW, [tokens])[0][-1]

    assert len(tokens) > 10
    assert_same([torch.tensor(each) for each in told], [activation(raw), raw, raw.sigmoid()])
    assert_same([offline.outputs.data, last], [activation(raw), raw])


# rewards from token logits


@pytest.mark.parametrize("model", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM", "GPT2LMHeadModel"])
def test_two_tokens_of_a_language_model_score_every_step(model: str, tmp_path: Path) -> None:
    """math-shepherd: softmax over + and - at each step tag."""
    reference = save_tiny(tmp_path, model)
    words = at_steps([rows[:, [GOOD, BAD]] for rows in compute_logits(reference)])

    with load_llm(tmp_path, pooler_config=SHEPHERD) as llm:
        assert llm.supported_tasks == ("token_classify",)
        assert_same(rows_of(llm), [rows.softmax(-1) for rows in words])
        assert_same(rows_of(llm, RAW), words)
        assert_same(pooled(llm), [rows.softmax(-1) for rows in words])
        assert_same(pooled(llm, use_activation=False), words)
    assert sum(len(rows) for rows in words) == sum(ids.count(STEP) for ids in SEQUENCES) > 4


def test_a_request_may_name_other_words_and_another_tag(tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path, tie_word_embeddings=True)
    words = at_steps([rows[:, [5, 6, 7]] for rows in compute_logits(reference)], 50)

    with load_llm(tmp_path, pooler_config=SHEPHERD) as llm:
        actual = rows_of(llm, PoolingParams(step_tag_id=50, returned_token_ids=[5, 6, 7]))
        with pytest.raises(Unsupported, match="convert embed"):
            llm.encode(SEQUENCES, pooling_task="token_embed", use_tqdm=False)

    assert_same(actual, [rows.softmax(-1) for rows in words])


def test_without_a_tag_every_token_is_judged(tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path)
    config = {"pooling_type": "STEP", "returned_token_ids": [GOOD, BAD]}

    with load_llm(tmp_path, pooler_config=config) as llm:
        assert_same(rows_of(llm), [rows[:, [GOOD, BAD]].softmax(-1) for rows in compute_logits(reference)])


def test_the_words_of_internlm2_have_a_name_of_their_own(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForCausalLM")
    rewrite(tmp_path, as_internlm2, architectures=["InternLM2ForCausalLM"])

    with load_llm(tmp_path, pooler_config=SHEPHERD) as llm:
        assert_same(rows_of(llm), at_steps([rows[:, [GOOD, BAD]].softmax(-1) for rows in compute_logits(reference)]))


@pytest.mark.parametrize("options", [{"task": "reward"}, {"convert": "reward"}])
def test_the_oldest_options_load_it_too(options: dict[str, Any], tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "LlamaForCausalLM")

    with load_llm(tmp_path, override_pooler_config=SHEPHERD, **options) as llm:
        assert_same(rows_of(llm), at_steps([rows[:, [GOOD, BAD]].softmax(-1) for rows in compute_logits(reference)]))


def test_token_logits_are_computed_in_float32_in_any_dtype(tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path)
    change_config(tmp_path, dtype="bfloat16")
    raw = [rows[:, [GOOD, BAD]] for rows in compute_logits(reference)]

    with LLM(str(tmp_path), dtype="bfloat16", device="cpu", pooler_config=SHEPHERD) as llm:
        actual = rows_of(llm, RAW)

    for mine, expected in zip(actual, at_steps(raw), strict=True):
        assert mine.dtype == torch.float32
        assert np.abs(mine.numpy() - expected.numpy()).max(initial=0.0) < 0.1
        assert not torch.equal(mine, mine.bfloat16().float()) or not len(mine)


def test_a_token_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)

    with pytest.raises(LoadError, match="token id 160 is out of range; the LM head has 160 rows"):
        load_llm(tmp_path, pooler_config=SHEPHERD | {"returned_token_ids": [GOOD, 160]})


def test_as_an_embedder_it_stays_an_embedder(tmp_path: Path) -> None:
    reference = tiny_qwen3_causal(tmp_path)

    with load_llm(tmp_path, pooler_config=SHEPHERD, convert="embed") as llm:
        rows = encoded(llm, "token_embed", RAW)
        reply = make_client(llm).post("/pooling", json={"input": "a", "task": "token_classify"})

    assert_same(rows, at_steps([states[:, [GOOD, BAD]] for states in compute_hidden_states(reference)]))
    assert_refused(reply, "Unsupported task", "task")
