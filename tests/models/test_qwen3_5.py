"""Qwen3.5 and ColQwen3.5 equal Transformers on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize
from transformers import (
    Qwen3_5ForCausalLM,
    Qwen3_5ForSequenceClassification,
    Qwen3_5TextForSequenceClassification,
    Qwen3_5TextModel,
)

from cenote import LLM
from cenote.errors import LoadError
from tests.factories import LLMFactory
from tests.models.parity import assert_same
from tests.models.qwen3_5 import INPUTS, LONG, TEXT, save, save_retriever, save_text
from tests.models.tiny_qwen3_vl import save_projection, states_of
from tests.tiny import compute_hidden_states

TOKEN_IDS = [[20], [9, 8, 7], list(range(30, 100)), [50, 9] * 32, list(range(20, 157)), [33, 32, 31]]


class Tiny(NamedTuple):
    llm: LLM
    reference: Any
    folder: Path

    def states(self) -> list[Tensor]:
        return [states_of(self.reference, self.folder, *item) for item in INPUTS]


def prompts() -> list[Any]:
    return [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in INPUTS]


def token_vectors(llm: LLM) -> list[Tensor]:
    return [out.outputs.data.float() for out in llm.encode(prompts(), pooling_task="token_embed", use_tqdm=False)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("embedder")
    reference = save(folder)
    return Tiny(open_llm(folder), reference, folder)


def test_every_token_of_texts_and_images_equals_transformers(embedder: Tiny) -> None:
    assert_same(token_vectors(embedder.llm), [normalize(each, dim=-1) for each in embedder.states()])


def test_the_last_token_is_the_embedding(embedder: Tiny) -> None:
    actual = [torch.tensor(out.outputs.embedding) for out in embedder.llm.embed(prompts(), use_tqdm=False)]

    assert_same(actual, [normalize(each[-1], dim=-1) for each in embedder.states()])


def test_multi_token_prediction_layers_are_ignored_and_text_models_load(embedder: Tiny, tmp_path: Path) -> None:
    save(tmp_path)
    embedder.reference.model.save_pretrained(tmp_path)
    save_projection(tmp_path, "mtp.fc", bias=False, renamed=str)

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.engine.model_info.architecture == "Qwen3_5Model"
        assert_same(token_vectors(llm), [normalize(each, dim=-1) for each in embedder.states()])


@pytest.mark.parametrize("model_class", [Qwen3_5ForCausalLM, Qwen3_5TextModel])
def test_the_text_half_alone_equals_transformers(model_class: type[Any], tmp_path: Path) -> None:
    reference = save_text(tmp_path, model_class)

    with LLM(str(tmp_path), dtype="float32") as llm:
        requests = [{"prompt_token_ids": ids} for ids in TOKEN_IDS]
        actual = llm.encode(requests, pooling_task="token_embed", use_tqdm=False)

    expected = [normalize(each, dim=-1) for each in compute_hidden_states(reference, TOKEN_IDS)]
    assert_same([out.outputs.data.float() for out in actual], expected)


@pytest.mark.parametrize("whole", [True, False])
def test_a_classifier_above_it_equals_transformers(whole: bool, tmp_path: Path) -> None:
    if whole:
        reference = save(tmp_path, Qwen3_5ForSequenceClassification, num_labels=3)
    else:
        reference = save_text(tmp_path, Qwen3_5TextForSequenceClassification, num_labels=3)

    with LLM(str(tmp_path), dtype="float32") as llm:
        actual = [torch.tensor(out.outputs.probs) for out in llm.classify([LONG, "two"], use_tqdm=False)]

    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    last = [
        each[-1] for each in compute_hidden_states(reference, [tokenizer.encode(text).ids for text in (LONG, "two")])
    ]
    assert_same(actual, [reference.score(each).softmax(-1) for each in last])


# token embeddings


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("contract", ["causal", "bidirectional"])
def test_a_retriever_attends_as_its_checkpoint_declares(contract: str, bias: bool, tmp_path: Path) -> None:
    reference, layer = save_retriever(tmp_path, bias=bias, retrieval_attention_contract=contract)
    # attention layers may be bidirectional, Gated DeltaNet layers never are
    reference.model.language_model.config.is_causal = contract == "causal"

    with LLM(str(tmp_path), dtype="float32") as llm:
        actual = token_vectors(llm)

    expected = [normalize(layer(states_of(reference, tmp_path, *item)), dim=-1) for item in INPUTS]
    assert_same(actual, expected)


@pytest.mark.parametrize("contract", ["causal", "bidirectional"])
@pytest.mark.parametrize("size", [320, 640])
def test_a_retriever_has_vectors_of_the_size_of_its_projection(size: int, contract: str, tmp_path: Path) -> None:
    # 320: VultronRetriever, 640: webAI-ColVec1.1; the contract may be part of text_config
    reference, layer = save_retriever(
        tmp_path, size=size, text_config=TEXT | {"retrieval_attention_contract": contract}
    )
    reference.model.language_model.config.is_causal = contract == "causal"

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.model_config.embedding_size == size
        actual = token_vectors(llm)

    expected = [normalize(layer(states_of(reference, tmp_path, *item)), dim=-1) for item in INPUTS]
    assert {rows.shape[1] for rows in actual} == {size}
    assert_same(actual, expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"retrieval_attention_contract": "both"},
        {"retrieval_attention_contract": "causal"}
        | {"text_config": TEXT | {"retrieval_attention_contract": "bidirectional"}},
    ],
    ids=["none", "unknown", "two"],
)
def test_a_retriever_that_does_not_say_how_it_attends_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    save_retriever(tmp_path, **changes)

    with pytest.raises(LoadError, match="must declare retrieval_attention_contract as 'causal' or 'bidirectional'"):
        LLM(str(tmp_path), dtype="float32")
