"""The classification route returns the labels and probabilities of LLM.classify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from tests.api.app_client import add_chat_template, assert_refused, load_llm, make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import change_config, tiny_bert_classifier

TEXTS = ["the cat is in the city", "a", "how big is the old river?", "a red bird, a blue fish", "two"]
LABELS = ["bad", "good", "new"]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("classifier")
    tiny_bert_classifier(folder, id2label=dict(enumerate(LABELS)))
    add_chat_template(folder)
    return open_llm(folder)


def post_classify(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = post_json(client, "/classify", **body)["data"]
    return data


def probs(data: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    return np.array([item["probs"] for item in data])


def expected(llm: LLM, prompts: Any, **options: Any) -> np.ndarray[Any, Any]:
    return np.array([output.outputs.probs for output in llm.classify(prompts, use_tqdm=False, **options)])


def test_probabilities_equal_llm_classify_and_the_label_is_the_most_probable_class(
    client: TestClient, llm: LLM
) -> None:
    theirs = expected(llm, TEXTS)

    ours = post_classify(client, input=TEXTS)

    np.testing.assert_allclose(probs(ours), theirs, atol=1e-6)
    assert [item["label"] for item in ours] == [LABELS[best] for best in theirs.argmax(axis=1)]
    assert len({item["label"] for item in ours}) > 1
    assert [(item["index"], item["num_classes"]) for item in ours] == [(index, 3) for index in range(5)]
    assert ours[0].keys() == {"index", "label", "probs", "num_classes"}


def test_a_response_has_an_id_the_model_name_and_usage(client: TestClient) -> None:
    body = {"input": TEXTS, "truncate_prompt_tokens": 5, "return_token_counts": True}

    replies = [client.post(path, json=body, headers={"x-request-id": "r-2"}) for path in ("/classify", "/v1/classify")]

    reply = replies[0].json()
    assert (reply["id"], reply["object"], reply["model"]) == ("classify-r-2", "list", "tiny")
    assert [item["token_counts"]["truncated"] for item in reply["data"]] == [3, 0, 4, 4, 0]
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == 5 + 3 + 5 + 5 + 3
    assert replies[0].headers["x-truncated-inputs"] == "3"
    assert replies[1].json()["data"] == reply["data"]


def test_logits_come_without_the_activation(client: TestClient, llm: LLM) -> None:
    logits = expected(llm, TEXTS, pooling_params=PoolingParams(use_activation=False))

    for name in ("use_activation", "softmax", "activation"):
        np.testing.assert_allclose(probs(post_classify(client, input=TEXTS, **{name: False})), logits, atol=1e-5)
    assert np.abs(logits.sum(axis=1) - 1).max() > 0.1
    reply = client.post("/classify", json={"input": "a", "use_activation": True, "normalize": False})
    assert_refused(reply, "`normalize` is a deprecated alias of `use_activation`", "normalize")


def test_normalize_is_for_embeddings(client: TestClient) -> None:
    message = "Task 'classify' only supports ['use_activation'] parameters, does not support ['normalize'] parameters"
    assert_refused(client.post("/classify", json={"input": "a", "normalize": False}), message, "normalize")
    reply = client.post("/pooling", json={"input": "a", "task": "classify", "normalize": True})
    assert_refused(reply, message, "normalize")


def test_token_ids_and_conversations_are_classified(client: TestClient, llm: LLM) -> None:
    messages = [{"role": "user", "content": "the old city"}]
    written = expected(llm, "user: the old city.", tokenization_kwargs={"add_special_tokens": False})

    np.testing.assert_allclose(probs(post_classify(client, input=[7, 8, 9])), expected(llm, [[7, 8, 9]]), atol=1e-6)
    np.testing.assert_allclose(probs(post_classify(client, messages=messages)), written, atol=1e-6)
    both = probs(post_classify(client, messages=[messages, messages]))
    np.testing.assert_allclose(both, np.concatenate([written, written]), atol=1e-6)


def test_a_model_with_one_class_returns_its_label(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1, id2label={0: "relevant"})
    with load_llm(tmp_path) as llm:
        (item,) = post_classify(make_client(llm), input="a")

    assert item["label"] == "relevant"
    assert item["num_classes"] == len(item["probs"]) == 1


def test_without_names_the_label_is_the_default_of_transformers(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    change_config(tmp_path, drop=("id2label", "label2id"), num_labels=3)
    with load_llm(tmp_path) as llm:
        (item,) = post_classify(make_client(llm), input="a")
        names = llm.labels

    assert names == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
    assert item["num_classes"] == 3
