"""Routes of Text Embeddings Inference and the Hugging Face paths, with the requests of their clients."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from tests.api.app_client import load_llm, make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import tiny_bert, tiny_bert_classifier, tiny_bge_m3, tiny_cross_encoder

TEXTS = ["Follow the white rabbit.", "How deep is the cave?"]
LONG = "the cat is in the city " * 80


@pytest.fixture(scope="module")
def embedder(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_bert)


@pytest.fixture(scope="module")
def client(embedder: LLM) -> TestClient:
    return make_client(embedder)


@pytest.fixture(scope="module")
def classifier(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_bert_classifier))


@pytest.fixture(scope="module")
def reranker(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_cross_encoder))


def test_embed_returns_a_plain_list_also_for_one_text(client: TestClient, embedder: LLM) -> None:
    expected = [output.outputs.embedding for output in embedder.embed(TEXTS, use_tqdm=False)]

    for path in ("/embed", "/", "/invocations", "/pipeline/feature-extraction/tiny"):
        assert np.allclose(post_json(client, path, inputs=TEXTS), expected, atol=1e-5)
        assert np.allclose(post_json(client, path, inputs=TEXTS[0]), expected[:1], atol=1e-5)


def test_token_ids_are_one_input(client: TestClient) -> None:
    assert np.shape(post_json(client, "/embed", inputs=[7, 8, 9])) == (1, 32)
    assert np.shape(post_json(client, "/embed", inputs=[[7, 8], [9], "a"])) == (3, 32)


def test_normalize_false_is_honoured(client: TestClient, embedder: LLM) -> None:
    params = PoolingParams(use_activation=False)
    expected = [output.outputs.embedding for output in embedder.embed(TEXTS, pooling_params=params, use_tqdm=False)]

    assert np.allclose(post_json(client, "/", inputs=TEXTS, normalize=False, truncate=True), expected, atol=1e-4)


def test_long_texts_are_cut_unless_truncate_is_false(client: TestClient) -> None:
    right, left = (post_json(client, "/embed", inputs=LONG, truncation_direction=side) for side in ("Right", "Left"))
    assert right == post_json(client, "/embed", inputs=LONG, truncate=True) and right != left

    reply = client.post("/embed", json={"inputs": LONG, "truncate": False})
    assert reply.status_code == 422 and reply.json()["error_type"] == "Validation"


@pytest.mark.parametrize("side", ["Left", "Right", None])
def test_a_cut_text_keeps_its_special_tokens(client: TestClient, embedder: LLM, side: str | None) -> None:
    limit = embedder.engine.model_info.max_model_len
    first, *words, last = embedder.get_tokenizer().encode(LONG)
    kept = words[2 - limit :] if side == "Left" else words[: limit - 2]

    (expected,) = post_json(client, "/embed", inputs=[[first, *kept, last]])

    assert len(words) > limit
    assert post_json(client, "/embed", inputs=LONG, truncation_direction=side)[0] == pytest.approx(expected, abs=1e-5)


def test_chroma_and_weaviate_options_are_ignored(client: TestClient) -> None:
    vectors = post_json(client, "/pipeline/feature-extraction/tiny", inputs=TEXTS, options={"wait_for_model": True})

    assert vectors == post_json(client, "/embed", inputs=TEXTS)
    reply = client.post("/pipeline/feature-extraction/other", json={"inputs": TEXTS})
    assert reply.status_code == 404 and isinstance(reply.json()["error"], str)


def test_similarity_is_the_cosine(client: TestClient) -> None:
    source, *others = np.array(post_json(client, "/embed", inputs=["a", *TEXTS]))
    body = {"inputs": {"source_sentence": "a", "sentences": TEXTS}}

    for path in ("/similarity", "/", "/pipeline/sentence-similarity/tiny"):
        assert post_json(client, path, **body) == pytest.approx([float(source @ other) for other in others], abs=1e-5)


def test_embed_all_returns_a_vector_per_token(client: TestClient) -> None:
    matrices = post_json(client, "/embed_all", inputs=["a", TEXTS[0]])

    assert [np.shape(matrix)[1] for matrix in matrices] == [32, 32] and len(matrices[0]) < len(matrices[1])


def test_predict_returns_all_classes_best_first(classifier: TestClient) -> None:
    single = post_json(classifier, "/predict", inputs="a cat")
    assert len(single) == 3 and sum(item["score"] for item in single) == pytest.approx(1, abs=1e-5)
    assert single == sorted(single, key=lambda item: -item["score"])
    batch = post_json(classifier, "/predict", inputs=[["a cat"], ["a cat", "a dog"]])
    assert [item["label"] for item in batch[0]] == [item["label"] for item in single]
    pair = post_json(classifier, "/predict", inputs=["a cat", "a dog"])
    assert [item["score"] for item in pair] == pytest.approx([item["score"] for item in batch[1]], abs=1e-5)
    logits = post_json(classifier, "/predict", inputs="a cat", raw_scores=True)
    assert sum(item["score"] for item in logits) != pytest.approx(1, abs=1e-3)


def test_the_root_gives_a_list_of_lists_for_a_classifier(classifier: TestClient) -> None:
    assert post_json(classifier, "/", inputs="a cat") == [post_json(classifier, "/predict", inputs="a cat")]


def test_rerank_with_texts_is_a_plain_list_of_probabilities(reranker: TestClient) -> None:
    body: dict[str, Any] = {"query": "a cat", "texts": ["a dog", "the river", "a cat"]}
    ranks = post_json(reranker, "/rerank", **body)
    logits = {item["index"]: item["score"] for item in post_json(reranker, "/rerank", **body, raw_scores=True)}

    assert all(item.keys() == {"index", "score"} for item in ranks)
    assert {item["index"]: item["score"] for item in ranks} == pytest.approx(
        {index: 1 / (1 + math.exp(-logit)) for index, logit in logits.items()}
    )
    shown = post_json(reranker, "/rerank", **body, return_text=True, top_n=1, truncation_direction="Right")
    assert len(shown) == 1 and shown[0]["text"] == body["texts"][shown[0]["index"]]
    documents = post_json(reranker, "/rerank", query="a cat", documents=body["texts"])
    assert [item["index"] for item in documents["results"]] == [item["index"] for item in ranks]


def test_sparse_embeddings_have_index_and_value(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("sparse")
    tiny_bge_m3(folder)
    with load_llm(folder) as llm:
        client = make_client(llm)
        sparse = post_json(client, "/v1/sparse_embeddings", input=TEXTS)["data"]
        values = post_json(client, "/embed_sparse", inputs=TEXTS)

    assert [[item["index"] for item in row] for row in values] == [row["token_ids"] for row in sparse]
    assert values[0][0]["value"] == pytest.approx(sparse[0]["weights"][0], abs=1e-6)


def test_vertex_runs_every_instance(client: TestClient) -> None:
    predictions = post_json(client, "/vertex", instances=[{"inputs": TEXTS[0]}, {"inputs": TEXTS}])["predictions"]

    assert [np.shape(item) for item in predictions] == [(1, 32), (2, 32)]


def test_info_names_the_model(client: TestClient, classifier: TestClient) -> None:
    info = client.get("/info").json()

    assert info["served_model_name"] == "tiny" and "embedding" in info["model_type"]
    assert classifier.get("/info").json()["model_type"]["classifier"]["id2label"].keys() == {"0", "1", "2"}


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": ""}, 400, "Empty"),
        ("/embed", {"inputs": []}, 400, "Empty"),
        ("/embed", {}, 422, "Validation"),
        ("/embed", {"inputs": "a", "prompt_name": "unknown"}, 422, "Validation"),
        ("/predict", {"inputs": "a"}, 424, "Backend"),
        ("/embed_sparse", {"inputs": "a"}, 424, "Backend"),
        ("/embed", {"inputs": "a", "model": "other"}, 404, "Validation"),
    ],
)
def test_errors_are_strings_with_a_type(
    client: TestClient, path: str, body: dict[str, Any], status: int, kind: str
) -> None:
    reply = client.post(path, json=body)

    assert (reply.status_code, reply.json()["error_type"]) == (status, kind), reply.text
    assert isinstance(reply.json()["error"], str)


FEATURES, SIMILARITY = "/pipeline/feature-extraction/tiny", "/pipeline/sentence-similarity/tiny"
SENTENCES = {"inputs": {"source_sentence": "a", "sentences": ["b"]}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (FEATURES, {"inputs": "a"}),
        (SIMILARITY, SENTENCES),
        ("/similarity", SENTENCES),
        ("/", SENTENCES),
        ("/invocations", SENTENCES),
        ("/vertex", {"instances": [SENTENCES]}),
        ("/", {"query": "a", "texts": ["b"]}),
        ("/vertex", {"instances": [{"query": "a", "texts": ["b"]}]}),
        ("/rerank", {"query": "a", "texts": ["b"]}),
        ("/embed", {"inputs": "a"}),
        ("/embed_all", {"inputs": "a"}),
        ("/embed_sparse", {"inputs": "a"}),
    ],
)
def test_a_classifier_refuses_the_requests_of_other_tasks(
    classifier: TestClient, path: str, body: dict[str, Any]
) -> None:
    reply = classifier.post(path, json=body)

    assert (reply.status_code, reply.json().get("error_type")) == (424, "Backend"), reply.text
    assert "classify" in reply.json()["error"]


@pytest.mark.parametrize(
    ("path", "body"), [(FEATURES, SENTENCES), (FEATURES, {"query": "a", "texts": ["b"]}), (SIMILARITY, {"inputs": "a"})]
)
def test_a_pipeline_path_refuses_the_body_of_another_task(client: TestClient, path: str, body: dict[str, Any]) -> None:
    reply = client.post(path, json=body)

    assert (reply.status_code, reply.json()["error_type"]) == (422, "Validation"), reply.text


def test_infinity_clients_get_labels_where_vllm_clients_get_probabilities(classifier: TestClient) -> None:
    body = {"input": ["a cat", "a dog"], "model": "tiny"}
    reply = post_json(classifier, "/classify", **body, raw_scores=False)

    expected = post_json(classifier, "/predict", inputs=[["a cat"]])[0]
    assert reply["object"] == "classify" and [len(entry) for entry in reply["data"]] == [3, 3]
    assert [item["label"] for item in reply["data"][0]] == [item["label"] for item in expected]
    assert [item["score"] for item in reply["data"][0]] == pytest.approx([item["score"] for item in expected], abs=1e-5)
    assert "probs" in post_json(classifier, "/classify", **body)["data"][0]


def test_tokenize_returns_tokens_with_byte_offsets_and_marks_special_ones(client: TestClient, embedder: LLM) -> None:
    text = "Café, the cat"

    (tokens,) = post_json(client, "/tokenize", inputs=text)

    assert [token["id"] for token in tokens] == embedder.get_tokenizer().encode(text)
    assert [token["special"] for token in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert (tokens[0]["text"], tokens[0]["start"], tokens[0]["stop"]) == ("[CLS]", None, None)
    for token in tokens[1:-1]:
        assert text.encode()[token["start"] : token["stop"]].decode() == token["text"]
    assert tokens[-2]["stop"] == len(text.encode())


def test_tokenize_takes_lists_without_special_tokens(client: TestClient) -> None:
    answers = post_json(client, "/tokenize", inputs=TEXTS, add_special_tokens=False)

    assert len(answers) == 2
    assert not any(token["special"] for tokens in answers for token in tokens)


def test_tokenize_of_vllm_stays_on_the_same_path(client: TestClient) -> None:
    assert post_json(client, "/tokenize", prompt="the cat")["count"] == 4


def test_decode_returns_texts_without_special_tokens_unless_asked(client: TestClient) -> None:
    ids = post_json(client, "/tokenize", prompt="the cat")["tokens"]

    assert post_json(client, "/decode", ids=ids) == ["the cat"]
    assert post_json(client, "/decode", ids=[ids, ids]) == ["the cat", "the cat"]
    assert post_json(client, "/decode", ids=ids, skip_special_tokens=False) == ["[CLS] the cat [SEP]"]
    assert client.post("/decode", json={"ids": [10**9]}).status_code == 422


def test_an_unknown_prompt_name_of_tokenize_is_refused(client: TestClient) -> None:
    reply = client.post("/tokenize", json={"inputs": "a", "prompt_name": "absent"})

    assert (reply.status_code, reply.json()["error_type"]) == (422, "Validation")


def test_metrics_have_the_names_of_text_embeddings_inference(client: TestClient) -> None:
    post_json(client, "/embed", inputs=TEXTS)

    lines = client.get("/metrics").text.splitlines()

    values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("te_")}
    assert values["te_request_success"] >= 1
    assert values["te_request_count"] >= values["te_request_success"]
    assert values["te_queue_size"] == 0
    histograms = "te_request_duration", "te_request_inference_duration", "te_batch_next_tokens"
    assert all(values[f"{name}_count"] >= 1 for name in histograms)


def test_predict_returns_probabilities_also_if_the_cross_encoder_is_configured_for_logits(
    tmp_path: Path,
) -> None:
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    tiny_bert_classifier(tmp_path, num_labels=1, sentence_transformers=identity)
    with load_llm(tmp_path) as llm:
        client = make_client(llm)
        (logit,) = post_json(client, "/predict", inputs=TEXTS[0], raw_scores=True)
        (prediction,) = post_json(client, "/predict", inputs=TEXTS[0])
        infinity = post_json(client, "/classify", input=[TEXTS[0]], raw_scores=False)["data"][0][0]
        moderation = post_json(client, "/v1/moderations", input=TEXTS[0])["results"][0]["category_scores"]
        (configured,) = post_json(client, "/classify", input=TEXTS[0])["data"]

    probability = 1 / (1 + np.exp(-logit["score"]))
    assert configured["probs"] == pytest.approx([logit["score"]], abs=1e-5)
    assert prediction["score"] == infinity["score"] == pytest.approx(probability, abs=1e-5)
    assert list(moderation.values()) == pytest.approx([probability], abs=1e-5)
