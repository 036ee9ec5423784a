"""The score route returns the scores of LLM.score, for all names of its fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM, PoolingParams
from tests.api.app_client import assert_refused, make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_classifier, tiny_cross_encoder

QUERY = "how big is the old river?"
DOCUMENTS = ["the river in the city is big", "a red bird", "two"]
PAIRS = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
IMAGE = {"content": [{"type": "image_url", "image_url": {"url": "http://localhost/cat.png"}}]}


@pytest.fixture(scope="module")
def cross_llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(tiny_cross_encoder)


@pytest.fixture(scope="module")
def cross_client(cross_llm: LLM) -> TestClient:
    return make_client(cross_llm)


@pytest.fixture(scope="module")
def three_labels(shared_llm: LLMFactory) -> TestClient:
    return make_client(shared_llm(tiny_bert_classifier))


def scores(client: TestClient, **body: Any) -> list[float]:
    data = post_json(client, "/score", **body)["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["score"] for item in data]


def expected(llm: LLM, first: Any, second: Any, **options: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(first, second, use_tqdm=False, **options)]


# queries and documents


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_queries_and_documents_have_four_pairs_of_field_names(
    client: TestClient, llm: LLM, first: str, second: str
) -> None:
    theirs = expected(llm, QUERY, DOCUMENTS)

    np.testing.assert_allclose(scores(client, **{first: QUERY, second: DOCUMENTS}), theirs, atol=1e-6)


def test_scores_are_one_to_one_one_to_many_or_pairwise(client: TestClient, llm: LLM) -> None:
    for first, second in (
        (QUERY, DOCUMENTS[0]),
        ([QUERY], DOCUMENTS[:1]),
        (QUERY, DOCUMENTS),
        ([QUERY], DOCUMENTS),
        (["a", "b", "c"], DOCUMENTS),
    ):
        ours = scores(client, text_1=first, text_2=second)
        np.testing.assert_allclose(ours, expected(llm, first, second), atol=1e-6)


def test_the_first_complete_pair_of_field_names_is_used(client: TestClient) -> None:
    body = {"data_1": "a", "data_2": "a", "text_1": "a", "text_2": "the river"}

    assert scores(client, **body) == pytest.approx([1], abs=1e-5)
    assert scores(client, **body | {"queries": "x", "data_2": None})[0] < 0.9
    assert len(scores(client, **body | {"queries": "x", "items": ["y", "z"]})) == 2


def test_objects_with_text_content_equal_plain_texts(client: TestClient, llm: LLM) -> None:
    parts = [{"type": "text", "text": "the cat"}, {"type": "text", "text": "is old"}]

    ours = scores(client, data_1={"content": "a cat"}, data_2=[{"content": parts}, {"text": "two"}])

    np.testing.assert_allclose(ours, expected(llm, "a cat", ["the cat\nis old", "two"]), atol=1e-6)


def test_a_cross_encoder_scores_query_and_document_together(cross_client: TestClient, cross_llm: LLM) -> None:
    theirs = expected(cross_llm, QUERY, DOCUMENTS)

    np.testing.assert_allclose(scores(cross_client, queries=QUERY, documents=DOCUMENTS), theirs, atol=1e-6)
    logits = expected(cross_llm, QUERY, DOCUMENTS, pooling_params=PoolingParams(use_activation=False))
    ours = scores(cross_client, queries=QUERY, documents=DOCUMENTS, use_activation=False)
    np.testing.assert_allclose(ours, logits, atol=1e-5)
    assert np.abs(np.array(logits) - theirs).max() > 0.1


def test_a_score_type_can_be_requested(client: TestClient, llm: LLM) -> None:
    theirs = expected(llm, QUERY, DOCUMENTS, score_type="late-interaction")

    ours = scores(client, text_1=QUERY, text_2=DOCUMENTS, score_type="late-interaction")

    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert ours[0] > 1  # a sum over the tokens of the query
    reply = client.post("/score", json={"text_1": "a", "text_2": "b", "score_type": "cross-encoder"})
    assert_refused(
        reply, "mini does not support score_type 'cross-encoder'; available: bi-encoder, late-interaction", "score_type"
    )
    reply = client.post("/score", json={"text_1": "a", "text_2": "b", "score_type": "magic"})
    assert_refused(reply, "expected one of: cross-encoder, bi-encoder, late-interaction", "body.score_type")


# limits and templates


def test_query_and_document_lengths_can_be_limited(client: TestClient, llm: LLM) -> None:
    limits = {"max_tokens_per_query": 3, "max_tokens_per_doc": 2}

    ours = scores(client, text_1=QUERY, text_2=DOCUMENTS, **limits)

    theirs = expected(llm, QUERY, DOCUMENTS, pooling_params=PoolingParams(extra_kwargs=limits))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert ours != scores(client, text_1=QUERY, text_2=DOCUMENTS)
    for off in (0, None):
        unlimited = scores(client, text_1=QUERY, text_2=DOCUMENTS, max_tokens_per_query=off, max_tokens_per_doc=off)
        np.testing.assert_allclose(unlimited, expected(llm, QUERY, DOCUMENTS), atol=1e-6)


@pytest.mark.parametrize("name", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_limits_out_of_range_are_refused(client: TestClient, name: str) -> None:
    for limit, words in (
        (-1, f"{name} must be a non-negative integer"),
        (256, f"{name} (256) must be less than max_model_len (256)."),
    ):
        assert_refused(client.post("/score", json={"text_1": "a", "text_2": "b", name: limit}), words, name)


def test_pairs_that_are_too_long_are_refused_or_truncated(cross_client: TestClient, cross_llm: LLM) -> None:
    long = "the river is big and " * 20
    body: dict[str, Any] = {"text_1": QUERY, "text_2": [long, "two"], "return_token_counts": True}

    assert_refused(cross_client.post("/score", json=body), "maximum context length is 66 tokens", "input_tokens")
    reply = cross_client.post("/score", json=body | {"truncate_prompt_tokens": 20})

    counts = [item["token_counts"] for item in reply.json()["data"]]
    assert counts[0]["used"] == 20 and counts[0]["truncated"] == counts[0]["given"] - 20 > 0
    assert counts[1]["used"] == counts[1]["given"] < 20
    assert reply.headers["x-truncated-inputs"] == "1"
    theirs = expected(cross_llm, QUERY, [long, "two"], tokenization_kwargs={"truncate_prompt_tokens": 20})
    np.testing.assert_allclose([item["score"] for item in reply.json()["data"]], theirs, atol=1e-6)


def test_a_score_template_gets_query_document_and_instruction(cross_llm: LLM) -> None:
    template = "{{ instruction }} : {{ messages[0].content }} ? {{ messages[1].content }}"
    client = make_client(cross_llm, trust_request_chat_template=True)
    body: dict[str, Any] = {"text_1": "cat", "text_2": ["dog", "fish"], "chat_template": template}

    def expected_with(instruction: str) -> list[float]:
        extra = {"chat_template_kwargs": {"instruction": instruction}}
        params = PoolingParams(extra_kwargs=extra)
        return expected(cross_llm, "cat", ["dog", "fish"], chat_template=template, pooling_params=params)

    assert scores(client, **body, instruction="search") == pytest.approx(expected_with("search"), abs=1e-6)
    kwargs = {"instruction": "one"}
    assert scores(client, **body, chat_template_kwargs=kwargs) == pytest.approx(expected_with("one"), abs=1e-6)
    # chat_template_kwargs take precedence over the field
    assert scores(client, **body, instruction="two", chat_template_kwargs=kwargs) == scores(
        client, **body, chat_template_kwargs=kwargs
    )
    assert expected_with("search") != expected_with("one")
    reply = client.post("/score", json=body | {"chat_template_kwargs": {"tools": []}})
    assert_refused(reply, "chat_template_kwargs contains reserved keys", "chat_template_kwargs")


def test_a_template_in_the_request_is_refused_unless_trusted(cross_client: TestClient) -> None:
    reply = cross_client.post(
        "/score", json={"text_1": "a", "text_2": "b", "chat_template": "{{ messages[0].content }}"}
    )

    assert_refused(reply, "--trust-request-chat-template is not set. Refused request", "chat_template")


# responses and errors


def test_a_response_has_an_id_the_model_name_and_usage(client: TestClient, llm: LLM) -> None:
    body = {"text_1": QUERY, "text_2": DOCUMENTS}
    num_tokens = sum(output.num_prompt_tokens for output in llm.embed([QUERY, *DOCUMENTS], use_tqdm=False))

    replies = [client.post(path, json=body, headers={"x-request-id": "r-3"}) for path in ("/score", "/v1/score")]

    reply = replies[0].json()
    assert (reply["id"], reply["object"], reply["model"]) == ("score-r-3", "list", "mini")
    assert [item.keys() for item in reply["data"]] == [{"index", "object", "score"}] * 3
    assert {item["object"] for item in reply["data"]} == {"score"}
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == num_tokens
    assert reply["usage"]["completion_tokens"] == 0
    assert replies[0].headers["x-prompt-tokens"] == str(num_tokens)
    assert replies[1].json()["data"] == reply["data"]


@pytest.mark.parametrize("score_type", ["bi-encoder", "late-interaction"])
def test_usage_counts_a_query_once_and_queries_of_their_own_each(client: TestClient, score_type: str) -> None:
    def count(queries: Any, documents: Any) -> int:
        body = {"queries": queries, "documents": documents, "score_type": score_type}
        usage: dict[str, int] = client.post("/score", json=body).json()["usage"]
        return usage["prompt_tokens"]

    one = count("two two", "two")

    assert one == 4 + 3
    assert count("two two", ["two"] * 10) == one + 9 * 3
    assert count(["two two"] * 10, ["two"] * 10) == 10 * one


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({}, "required, as queries and documents, or queries and items, or data_1", "body.queries"),
        ({"documents": ["a"]}, "queries is required with documents", "body.queries"),
        ({"data_2": "a", "text_1": "a"}, "data_1 is required with data_2", "body.data_1"),
        ({"text_1": "a", "text_2": None}, "text_2 is required with text_1", "body.text_2"),
        ({"text_1": "a", "text_2": []}, "At least one text_pair element must be given", None),
        ({"text_1": "a", "text_2": IMAGE}, "MultiModalParam is not supported for BertModel", "text_2.content.0"),
        ({"queries": ["a", IMAGE], "items": "b"}, "MultiModalParam is not supported for", "queries.1.content.0"),
        ({"text_1": "a", "text_2": {"image": "a"}}, "got an object with 'image'", "body.text_2"),
        ({"text_1": "a", "text_2": "b", "normalize": True, "use_activation": False}, "deprecated alias", "normalize"),
    ],
)  # fmt: skip
def test_invalid_requests_are_refused_with_the_field(
    client: TestClient, body: dict[str, Any], words: str, param: str | None
) -> None:
    assert_refused(client.post("/score", json=body), words, param)


@pytest.mark.parametrize("path", ["/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"])
def test_a_classifier_with_several_labels_has_no_scoring_routes(three_labels: TestClient, path: str) -> None:
    name = "Score" if path.endswith("/score") else "Rerank (Score)"
    reply = three_labels.post(path, json={"queries": "a", "query": "a", "documents": ["b"]})

    assert reply.status_code == reply.json()["error"]["code"] == 404
    assert reply.json()["detail"] == "Not Found"
    assert reply.json()["error"]["type"] == "NotFoundError"
    assert reply.json()["error"]["message"] == reply.json()["message"]
    assert reply.json()["message"].startswith(f"The model does not support {name} API. ")
    assert "supports the tasks classify, token_classify; supported routes: /classify" in reply.json()["message"]
