"""GLiNER: entities of the labels in a request, against a plain implementation on Transformers' DeBERTa."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cenote import LLM
from cenote.errors import BadRequest, LoadError
from cenote.protocol.requests import EntityRequest, PoolRequest
from tests.api.app_client import assert_refused, make_client
from tests.api.front_ends.remote_link import call_both
from tests.factories import LLMFactory
from tests.layouts.builders.gliner import PROMPT_TOKENS, add_own_files, save_gliner
from tests.models.gliner_checks import LABELS, TEXTS, Found, assert_found, choose_apart, load_tokenizer
from tests.tiny import tiny_bert_token_classifier

MAX_WIDTH = 12


def find_entities(encoder: Any, head: Any, tokenizer: Any, text: str, labels: Sequence[str], threshold: float) -> Found:
    """Score one span after another; the best ones that do not overlap are entities."""
    words = [match.span() for match in re.finditer(r"\w+(?:[-_]\w+)*|\S", text)][:384]
    prompt = [part for label in labels for part in ("<<ENT>>", label)] + ["<<SEP>>"]
    encoding = tokenizer([*prompt, *(text[slice(*word)] for word in words)], is_split_into_words=True)
    with torch.no_grad():
        states = encoder(torch.tensor([encoding["input_ids"]])).last_hidden_state
        states = head["token_rep_layer"]["projection"](states)[0]
        rows = [encoding.word_ids().index(row) for row in range(len(prompt) + len(words))]
        if not words:
            return []
        contexts = head["rnn"]["lstm"](states[rows[len(prompt) :]][None])[0][0]
        targets = head["prompt_rep_layer"](states[rows[: len(prompt) - 1 : 2]])
        scored = [
            (score, first, last, label)
            for first in range(len(words))
            for last in range(first, min(first + MAX_WIDTH, len(words)))
            for label, score in enumerate(score_span(head, contexts[first], contexts[last], targets))
            if score > threshold
        ]
    return choose_apart(scored, words, labels)


def score_span(head: Any, first: Tensor, last: Tensor, targets: Tensor) -> list[float]:
    layers = head["span_rep_layer"]["span_rep_layer"]
    ends = torch.cat((layers["project_start"](first), layers["project_end"](last)))
    scores: list[float] = (targets @ layers["out_project"](ends.relu())).sigmoid().tolist()
    return scores


class Saved:
    """A saved model and its parts."""

    def __init__(self, parent: Path) -> None:
        self.folder = parent / "gliner_medium-v2.1"
        self.folder.mkdir()
        self.encoder, self.head = save_gliner(self.folder)
        self.tokenizer = load_tokenizer(parent / "deberta-v3-base")

    def find(self, text: str, labels: Sequence[str] = LABELS, threshold: float = 0.5) -> Found:
        return find_entities(self.encoder, self.head, self.tokenizer, text, labels, threshold)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return Saved(tmp_path_factory.mktemp("gliner"))


@pytest.fixture(scope="module")
def llm(saved: Saved, open_llm: LLMFactory) -> LLM:
    return open_llm(saved.folder)


@pytest.mark.parametrize("threshold", [None, 0.0, 0.9])
def test_entities_equal_those_of_a_plain_implementation(saved: Saved, llm: LLM, threshold: float | None) -> None:
    outputs = llm.entities(TEXTS, labels=LABELS, threshold=threshold, use_tqdm=False)

    for text, output in zip(TEXTS, outputs, strict=True):
        expected = saved.find(text, threshold=0.5 if threshold is None else threshold)
        assert_found(output.outputs.entities, expected, text)
        assert not output.outputs.truncated
    assert len({entity.label for output in outputs for entity in output.outputs.entities}) > 1


def test_a_folder_with_all_files_needs_no_base_model(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    add_own_files(saved.folder, saved.encoder)
    llm = LLM(str(saved.folder), dtype="float32", device="cpu")

    for text, output in zip(TEXTS, llm.entities(TEXTS, labels=LABELS, use_tqdm=False), strict=True):
        assert_found(output.outputs.entities, saved.find(text), text)


def test_labels_are_taken_once_and_the_words_beyond_the_limit_are_reported(saved: Saved, llm: LLM) -> None:
    text = "deep water " * 200

    (output,) = llm.entities(text, labels=[*LABELS, "city"], use_tqdm=False)

    assert_found(output.outputs.entities, saved.find(text), text)
    assert output.outputs.truncated
    (short,) = llm.entities(
        text, labels=LABELS, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 60, "truncation": True}
    )
    assert short.outputs.truncated and len(short.prompt_token_ids) <= 60
    kept = text[: max(entity.end for entity in short.outputs.entities)] if short.outputs.entities else ""
    assert len(kept) < len(text)


def test_the_route_returns_what_llm_entities_returns(llm: LLM) -> None:
    client = make_client(llm)
    body = {"input": TEXTS, "labels": LABELS, "threshold": 0.3}

    reply = client.post("/entities", json=body)

    outputs = llm.entities(TEXTS, labels=LABELS, threshold=0.3, use_tqdm=False)
    assert reply.status_code == 200, reply.text
    assert [item["entities"] for item in reply.json()["data"]] == [
        [entity.as_dict() for entity in output.outputs.entities] for output in outputs
    ]
    assert_refused(client.post("/entities", json={"input": "a"}), "labels must be a list", "labels")
    assert_refused(client.post("/entities", json=body | {"stride": 2}), "stride is not supported", "stride")


def test_remote_entities_equal_local_entities(llm: LLM) -> None:
    pool = PoolRequest(task="token_classify", inputs=TEXTS)
    request = EntityRequest(pool_request=pool, labels=LABELS, threshold=0.2)

    local, remote = call_both(llm.engine, lambda engine: engine.entities(request))

    assert [result.entities for result in local] == [result.entities for result in remote]
    assert any(result.entities for result in remote)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "labels must be a list"),
        ({"labels": []}, "labels must be a list"),
        ({"labels": "city"}, "labels must be a list"),
        ({"labels": ["city", " "]}, "labels must be a list"),
        ({"labels": LABELS, "threshold": 2}, "invalid threshold 2"),
        ({"labels": LABELS, "aggregation_strategy": "max"}, "aggregation_strategy must be simple"),
        ({"labels": LABELS, "stride": 4}, "stride is not supported"),
        ({"labels": ["deep water " * 3000]}, "the labels leave no room for the text"),
    ],
)
def test_invalid_options_are_refused(llm: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        llm.entities("the cat", use_tqdm=False, **options)


def test_a_token_classifier_refuses_labels(tmp_path: Path) -> None:
    tiny_bert_token_classifier(tmp_path)
    llm = LLM(str(tmp_path), device="cpu")

    with pytest.raises(BadRequest, match="labels and threshold are for models without labels of their own"):
        llm.entities("the cat", labels=["city"], use_tqdm=False)


def test_a_missing_base_model_is_named_with_the_way_out(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    (tmp_path / "deberta-v3-base").rename(tmp_path / "elsewhere")

    with pytest.raises(LoadError, match=r"gliner_config.json: .*'microsoft/deberta-v3-base', .*hf_overrides=") as error:
        LLM(str(saved.folder), device="cpu")

    assert "\n" not in error.value.message
    overrides = {"model_name": str(tmp_path / "elsewhere")}
    llm = LLM(str(saved.folder), dtype="float32", device="cpu", hf_overrides=overrides)
    (output,) = llm.entities(TEXTS[:1], labels=LABELS, use_tqdm=False)
    assert_found(output.outputs.entities, saved.find(TEXTS[0]), TEXTS[0])


def test_a_tokenizer_that_does_not_fit_the_embeddings_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    path = tmp_path / "deberta-v3-base" / "added_tokens.json"
    path.write_text(json.dumps({"<<extra>>": len(load_tokenizer(path.parent)) - len(PROMPT_TOKENS)}))

    with pytest.raises(LoadError, match="gliner_config.json: the tokenizer has .* tokens with those of the prompt"):
        LLM(str(saved.folder), device="cpu")


def test_a_checkpoint_with_other_weights_is_refused(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    weights = torch.load(saved.folder / "pytorch_model.bin", weights_only=True)
    torch.save(weights | {"scorer.weight": nn.Linear(2, 2).weight.data}, saved.folder / "pytorch_model.bin")

    with pytest.raises(LoadError, match="unexpected in the checkpoint: scorer.weight"):
        LLM(str(saved.folder), device="cpu")
