"""Classification in the formats of OpenAI's moderations, Cohere version 1 and Jina."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.moderations import is_harmless
from tests.api.app_client import assert_refused, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_classifier

TEXTS = ["the cat is in the city", "how big is the old river?", "a red bird, a blue fish"]
LABELS = ["toxic", "safe", "not toxic"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> TestClient:
    folder = tmp_path_factory.mktemp("classifier")
    tiny_bert_classifier(folder, id2label=dict(enumerate(LABELS)))
    return make_client(open_llm(folder))


@pytest.fixture(scope="module")
def probs(client: TestClient) -> np.ndarray[Any, Any]:
    return np.array([item["probs"] for item in client.post("/classify", json={"input": TEXTS}).json()["data"]])


def test_moderations_have_a_category_for_each_label(client: TestClient, probs: np.ndarray[Any, Any]) -> None:
    reply = client.post("/v1/moderations", json={"input": TEXTS, "model": "tiny"}).json()

    assert reply["id"].startswith("modr-") and reply["model"] == "tiny"
    for result, row in zip(reply["results"], probs.tolist(), strict=True):
        assert result["category_scores"] == pytest.approx(dict(zip(LABELS, row, strict=True)), abs=1e-6)
        assert result["categories"] == {label: value >= 0.5 for label, value in zip(LABELS, row, strict=True)}
        assert result["flagged"] == (row[0] >= 0.5)


def test_parts_of_a_moderation_are_one_input_and_images_are_refused(client: TestClient) -> None:
    parts = [{"type": "text", "text": text} for text in TEXTS[:2]]
    joined = client.post("/v1/moderations", json={"input": "\n".join(TEXTS[:2])}).json()["results"]

    assert client.post("/v1/moderations", json={"input": parts}).json()["results"] == joined
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert client.post("/v1/moderations", json={"input": [image]}).status_code == 400


@pytest.mark.parametrize(
    ("label", "harmless"),
    [("SAFE", True), ("OK", True), ("not_toxic", True), ("non-hate", True), ("NOTICE", False), ("hate", False)],
)
def test_labels_of_harmless_texts_flag_nothing(label: str, harmless: bool) -> None:
    assert is_harmless(label) == harmless


def test_cohere_classify_has_the_confidence_of_each_label(client: TestClient, probs: np.ndarray[Any, Any]) -> None:
    reply = client.post("/v1/classify", json={"inputs": TEXTS, "model": "tiny"}).json()

    for entry, text, row in zip(reply["classifications"], TEXTS, probs.tolist(), strict=True):
        assert entry["input"] == text and entry["prediction"] == LABELS[int(np.argmax(row))]
        assert entry["predictions"] == [entry["prediction"]] and entry["confidences"] == [entry["confidence"]]
        confidences = {label: item["confidence"] for label, item in entry["labels"].items()}
        assert confidences == pytest.approx(dict(zip(LABELS, row, strict=True)), abs=1e-6)
    examples = [{"text": "a", "label": "b"}]
    assert client.post("/v1/classify", json={"inputs": TEXTS, "examples": examples}).status_code == 400


def test_other_bodies_on_the_same_path_get_the_format_of_vllm(client: TestClient, probs: np.ndarray[Any, Any]) -> None:
    data = client.post("/v1/classify", json={"input": TEXTS}).json()["data"]

    np.testing.assert_allclose([item["probs"] for item in data], probs, atol=1e-6)


def test_jina_classifies_by_the_similarity_to_labels(llm: LLM) -> None:
    client = make_client(llm)
    texts: list[Any] = ["The soup was too salty.", {"text": "The train to Paris is late."}]

    reply = client.post("/v1/classify", json={"input": texts, "labels": ["food", "railway"]}).json()

    assert [item["prediction"] for item in reply["data"]] == ["food", "railway"]
    for item in reply["data"]:
        assert sum(prediction["score"] for prediction in item["predictions"]) == pytest.approx(1, abs=1e-5)
        assert item["score"] == max(prediction["score"] for prediction in item["predictions"])
    assert client.post("/v1/classify", json={"input": texts, "labels": ["food"]}).status_code == 400
    assert client.post("/v1/classify", json={"input": [{"image": "a"}], "labels": ["a", "b"]}).status_code == 400


def test_cohere_tokenize_and_detokenize_are_inverse(llm: LLM) -> None:
    client = make_client(llm)

    tokenized = client.post("/v1/tokenize", json={"text": "a red bird", "model": "mini"}).json()

    assert tokenized["token_strings"] == ["a", "red", "bird"] and len(tokenized["tokens"]) == 3
    assert tokenized["meta"]["api_version"]["version"] == "1"
    text = client.post("/v1/detokenize", json={"tokens": tokenized["tokens"], "model": "mini"}).json()["text"]
    assert text == "a red bird"
    assert client.post("/v1/tokenize", json={"text": "a", "model": "other"}).json()["message"]


def test_jina_entries_are_the_same_for_labels_with_escapes(llm: LLM) -> None:
    labels = ['quotes "\\', "line\nbreak", "Gemüse"]

    reply = make_client(llm).post("/v1/classify", json={"input": ["We ate bread.", "A train."], "labels": labels})

    for index, entry in enumerate(reply.json()["data"]):
        assert [item["label"] for item in entry["predictions"]] == labels
        best = max(entry["predictions"], key=lambda item: item["score"])
        assert (entry["object"], entry["index"]) == ("classification", index)
        assert (entry["prediction"], entry["score"]) == (best["label"], best["score"])


def test_jina_labels_and_the_answer_that_repeats_them_are_limited(llm: LLM) -> None:
    client = make_client(llm, max_inflight_bytes=10_000_000)
    long = {"input": ["a"] * 100, "labels": ["x" * 30_000, "y" * 30_000]}

    reply = client.post("/v1/classify", json=long)

    assert_refused(reply, "the answer would take about 18", None, status=413)
    many = client.post("/v1/classify", json={"input": ["a"], "labels": [str(number) for number in range(257)]})
    assert_refused(many, "labels: expected array of length <= 256", "body.labels")
