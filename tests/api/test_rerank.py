"""Rerank routes, with the requests of all supported clients."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.rerank import RerankBody
from tests.api.app_client import make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_classifier, tiny_cross_encoder

QUERY = "how deep is the cave?"
DOCUMENTS = ["bread is cheap today", "the cave is 40 metres deep", "a hole in the ground"]
ROUTES = ["/rerank", "/v1/rerank", "/v2/rerank"]
LONG = "the cat is in the city " * 40

# request bodies by client, each with its route
BODIES = {
    "vllm": ("/rerank", {"model": "mini", "query": QUERY, "documents": DOCUMENTS}),
    "jina": ("/v1/rerank", {"query": QUERY, "documents": DOCUMENTS, "model": "mini", "top_n": 3}),
    "cohere v1": (
        "/v1/rerank",
        {
            "model": "mini",
            "query": QUERY,
            "documents": [{"text": text} for text in DOCUMENTS],
            "top_n": 3,
            "return_documents": True,
            "max_chunks_per_doc": 10,
        },
    ),
    "cohere v2": ("/v2/rerank", {"model": "mini", "query": QUERY, "documents": DOCUMENTS, "relevant_spans": None}),
    "langchain": (
        "/v2/rerank",
        {"model": "mini", "query": QUERY, "documents": DOCUMENTS, "top_n": None, "max_tokens_per_doc": None},
    ),
    "litellm": (
        "/rerank",
        {
            "model": "mini",
            "query": QUERY,
            "documents": DOCUMENTS,
            "return_documents": True,
            "instruction": "find the depth",
            "truncation_side": "right",
            "truncate_prompt_tokens": 200,
            "max_tokens_per_query": 100,
            "max_tokens_per_doc": 100,
        },
    ),
    "haystack": ("/v1/rerank", {"model": "mini", "query": QUERY, "documents": DOCUMENTS, "top_n": 3}),
    "milvus": ("/rerank", {"query": QUERY, "documents": DOCUMENTS}),
    "dify": (
        "/v1/rerank",
        {"model": "mini", "query": QUERY, "documents": DOCUMENTS, "top_n": None, "return_documents": True},
    ),
    "open webui": ("/v1/rerank", {"model": "mini", "query": QUERY, "documents": DOCUMENTS, "top_n": len(DOCUMENTS)}),
    "ragflow": (
        "/rerank",
        {
            "model": "mini",
            "query": QUERY,
            "documents": DOCUMENTS,
            "return_documents": "true",
            "return_len": "true",
        },
    ),
    "everything null": (
        "/rerank",
        {
            **dict.fromkeys((*RerankBody.__struct_fields__, "max_chunks_per_doc", "relevant_spans", "return_len")),
            "query": QUERY,
            "documents": DOCUMENTS,
        },
    ),
}


@pytest.fixture(scope="module")
def cross_encoder(shared_llm: LLMFactory) -> LLM:
    """A cross-encoder with a maximum length of 66 and a small vocabulary."""
    return shared_llm(tiny_cross_encoder, served_model_name="cross")


def rerank(client: TestClient, path: str = "/rerank", **body: Any) -> Any:
    return post_json(client, path, **{"query": QUERY, "documents": DOCUMENTS, **body})


def get_error(client: TestClient, path: str = "/rerank", **body: Any) -> tuple[int, str, str | None]:
    reply = client.post(path, json={"query": QUERY, "documents": DOCUMENTS, **body})
    assert reply.status_code >= 400, reply.text
    error = reply.json()["error"]
    return reply.status_code, error["message"], error["param"]


def ranking(reply: Any) -> list[int]:
    return [result["index"] for result in reply["results"]]


@pytest.mark.parametrize("name", BODIES)
def test_the_response_format_suits_every_client(client: TestClient, name: str) -> None:
    path, body = BODIES[name]

    reply = client.post(path, json=body)

    assert reply.status_code == 200, reply.text
    found = reply.json()
    assert ranking(found) == [1, 2, 0]
    assert [result["document"] for result in found["results"]] == [
        {"text": DOCUMENTS[index], "multi_modal": None} for index in (1, 2, 0)
    ]
    scores = [result["relevance_score"] for result in found["results"]]
    assert scores == sorted(scores, reverse=True)
    tokens = found["usage"]["prompt_tokens"]
    assert found["id"] == f"score-{reply.headers['x-request-id']}"
    assert found["model"] == "mini"
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    assert found["meta"] == {
        "api_version": {"version": path[2] if path.startswith("/v2") else "1"},
        "billed_units": {"search_units": 1},
        "tokens": {"input_tokens": tokens, "output_tokens": 0},
        "warnings": [],
    }


@pytest.mark.parametrize("path", ROUTES)
def test_scores_equal_llm_score_and_usage_counts_every_input_once(client: TestClient, llm: LLM, path: str) -> None:
    expected = llm.score(QUERY, DOCUMENTS, use_tqdm=False)
    inputs = llm.embed([QUERY, *DOCUMENTS], use_tqdm=False)

    found = rerank(client, path)

    scores = {result["index"]: result["relevance_score"] for result in found["results"]}
    assert [scores[index] for index in range(3)] == pytest.approx(
        [output.outputs.score for output in expected], abs=1e-6
    )
    assert found["usage"]["prompt_tokens"] == sum(output.num_prompt_tokens for output in inputs)


def test_a_cross_encoder_scores_query_and_document_together(cross_encoder: LLM) -> None:
    documents = ["the cat is in the city", "a red bird", "who live in berlin"]
    expected = cross_encoder.score("where is the cat", documents, use_tqdm=False)
    ranked = sorted(range(3), key=lambda index: -expected[index].outputs.score)

    found = rerank(make_client(cross_encoder), query="where is the cat", documents=documents, return_token_counts=True)

    assert ranking(found) == ranked
    for result in found["results"]:
        ids = expected[result["index"]].prompt_token_ids
        assert result["relevance_score"] == pytest.approx(expected[result["index"]].outputs.score, abs=1e-6)
        assert result["token_counts"] == {"used": len(ids), "given": len(ids), "truncated": 0}
    assert found["usage"]["total_tokens"] == sum(len(output.prompt_token_ids) for output in expected)


@pytest.mark.parametrize("name", ["use_activation", "normalize"])
def test_without_activation_a_cross_encoder_gives_its_logit(cross_encoder: LLM, name: str) -> None:
    client = make_client(cross_encoder)

    activated = rerank(client, query="the cat", documents=["the dog"])["results"][0]["relevance_score"]
    logit = rerank(client, query="the cat", documents=["the dog"], **{name: "false"})["results"][0]["relevance_score"]

    assert activated == pytest.approx(1 / (1 + 2.718281828459045**-logit), abs=1e-6)


def test_ties_keep_the_order_of_the_documents(client: TestClient) -> None:
    found = rerank(client, documents=["stone", "water", "stone", "water", "stone"])

    by_text: dict[str, list[int]] = {}
    for result in found["results"]:
        by_text.setdefault(result["document"]["text"], []).append(result["index"])
    assert by_text == {"stone": [0, 2, 4], "water": [1, 3]}


@pytest.mark.parametrize(("top_n", "count"), [(None, 3), (0, 3), (1, 1), (2, 2), (99, 3), ("2", 2)])
def test_top_n_returns_the_best_and_usage_counts_all(client: TestClient, top_n: object, count: int) -> None:
    everything, found = rerank(client), rerank(client, top_n=top_n)

    assert found["results"] == everything["results"][:count]
    assert found["usage"] == everything["usage"]
    assert rerank(client, top_k=top_n)["results"] == found["results"]


def test_a_negative_top_n_is_refused(client: TestClient) -> None:
    assert get_error(client, top_n=-1)[::2] == (400, "body.top_n")


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("return_documents", "is_returned"),
    [(None, True), (True, True), ("true", True), ("True", True), (False, False), ("false", False)],
)
def test_documents_are_returned_unless_disabled(
    client: TestClient, path: str, return_documents: object, is_returned: bool
) -> None:
    found = rerank(client, path, return_documents=return_documents)

    assert ["document" in result for result in found["results"]] == [is_returned] * 3


def test_an_invalid_boolean_is_refused(client: TestClient) -> None:
    assert get_error(client, return_documents="maybe")[::2] == (400, "body.return_documents")


def test_documents_can_be_returned_as_strings(llm: LLM) -> None:
    found = rerank(
        make_client(llm, rerank_document_shape="string"), documents=["a cave", {"text": "a hole", "page": 4}]
    )

    assert sorted(result["document"] for result in found["results"]) == ["a cave", "a hole"]


def test_other_fields_of_a_document_are_returned(client: TestClient) -> None:
    found = rerank(client, documents=[{"text": "a cave", "page": 4, "tags": ["deep"]}])

    assert found["results"][0]["document"] == {"text": "a cave", "page": 4, "tags": ["deep"], "multi_modal": None}


def test_rank_fields_form_the_text_of_a_document(client: TestClient) -> None:
    document = {"title": "Caves", "content": "They are deep.", "year": 1999, "id": "x"}

    found = rerank(client, documents=[document], rank_fields=["title", "content", "year"])
    as_text = rerank(client, documents=["title: Caves\ncontent: They are deep.\nyear: 1999"])
    one_field = rerank(client, documents=[document, "Caves"], rank_fields=["title"])

    assert found["results"][0]["relevance_score"] == as_text["results"][0]["relevance_score"]
    assert found["results"][0]["document"] == {
        **document,
        "text": as_text["results"][0]["document"]["text"],
        "multi_modal": None,
    }
    assert one_field["results"][0]["relevance_score"] == one_field["results"][1]["relevance_score"]


def test_a_document_without_text_is_refused_with_its_fields(client: TestClient) -> None:
    status, message, param = get_error(client, documents=["a", {"title": "x"}])
    assert (status, param) == (400, "body.documents.1")
    assert "'title'" in message

    status, message, param = get_error(client, documents=[{"title": "x"}], rank_fields=["body"])
    assert (status, param) == (400, "body.documents.0")
    assert "rank_fields body found; fields: title" in message


@pytest.mark.parametrize(
    "text", [QUERY, {"text": QUERY}, {"content": QUERY}, {"content": [{"type": "text", "text": QUERY}]}]
)
def test_query_and_documents_may_be_objects(client: TestClient, text: Any) -> None:
    found = rerank(client, query=text, documents=text)  # one document needs no list

    assert found["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-6)
    assert found["results"][0]["document"]["text"] == QUERY


def test_content_parts_are_returned_as_multi_modal(client: TestClient) -> None:
    parts = [{"type": "text", "text": "a cave"}, {"type": "text", "text": "is deep"}]

    found = rerank(client, documents=[{"content": parts}, "a cave\nis deep"])

    first, second = sorted(found["results"], key=lambda result: result["index"])
    assert first["relevance_score"] == second["relevance_score"]
    assert first["document"] == {"text": "a cave\nis deep", "multi_modal": parts}


def test_a_text_model_refuses_an_image_with_its_name(client: TestClient) -> None:
    image = {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]}

    status, message, param = get_error(client, documents=["a", image])

    assert (status, param) == (400, "documents.1.content.0")
    assert message.startswith("MultiModalParam is not supported for BertModel")


def test_a_pair_that_is_too_long_is_refused_as_in_vllm(cross_encoder: LLM) -> None:
    status, message, param = get_error(
        make_client(cross_encoder), "/rerank", query="the cat", documents=["the dog", "the cat " * 40]
    )

    assert (status, param) == (400, "input_tokens")
    assert message.startswith("Set truncate_prompt_tokens=-1 to cut such inputs to 66 tokens;")
    assert "This model's maximum context length is 66 tokens. However, you requested 0 output tokens" in message


def test_the_cohere_route_truncates_long_documents_and_reports_it(cross_encoder: LLM) -> None:
    client = make_client(cross_encoder)
    body = {"query": "the cat", "documents": ["the dog", LONG], "max_tokens_per_doc": 4096, "return_token_counts": True}

    reply = client.post("/v2/rerank", json=body)

    assert reply.status_code == 200, reply.text
    assert reply.headers["x-truncated-inputs"] == "1"
    counts = {result["index"]: result["token_counts"] for result in reply.json()["results"]}
    assert counts[1] == {"used": 66, "given": 240 + 5, "truncated": 240 + 5 - 66}
    assert counts[0]["truncated"] == 0
    assert len(reply.json()["meta"]["warnings"]) == 1


@pytest.mark.parametrize("path", ROUTES)
def test_truncate_applies_on_every_route(cross_encoder: LLM, path: str) -> None:
    client, body = make_client(cross_encoder), {"query": "the cat", "documents": ["the dog", LONG]}

    assert rerank(client, path, **body, truncate=True)["usage"]["total_tokens"] == 66 + 7
    assert rerank(client, path, **body, truncate_prompt_tokens=16)["usage"]["total_tokens"] == 16 + 7
    assert get_error(client, path, **body, truncate=False)[0] == 400


@pytest.mark.parametrize("name", ["max_tokens_per_doc", "max_doc_length"])
@pytest.mark.parametrize("path", ROUTES)
def test_documents_are_truncated_to_max_tokens_per_doc(cross_encoder: LLM, path: str, name: str) -> None:
    client, body = make_client(cross_encoder), {"query": "the cat", "documents": ["the dog", LONG]}

    assert rerank(client, path, **body, **{name: 10})["usage"]["total_tokens"] == (2 + 10 + 3) + 7


def test_invalid_limits_are_refused(client: TestClient) -> None:
    assert get_error(client, max_tokens_per_doc=-1)[2] == "max_tokens_per_doc"
    assert "(256) must be less than max_model_len (256)" in get_error(client, max_tokens_per_doc=256)[1]
    assert "with different values: 3 and 4" in get_error(client, max_tokens_per_doc=4, max_doc_length=3)[1]


def test_a_supported_score_type_is_used(client: TestClient, llm: LLM) -> None:
    expected = llm.score(QUERY, DOCUMENTS, score_type="late-interaction", use_tqdm=False)

    found = rerank(client, score_type="late-interaction", top_n=1)

    best = max(expected, key=lambda output: output.outputs.score)
    assert found["results"][0]["relevance_score"] == pytest.approx(best.outputs.score, rel=1e-5)
    assert get_error(client, score_type="cross-encoder")[2] == "score_type"


def test_an_instruction_reaches_the_template(tmp_path: Any) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1)
    template = "{{ instruction }} {{ messages[0]['content'] }} {{ messages[1]['content'] }}"
    with LLM(str(tmp_path), dtype="float32", device="cpu", chat_template=template) as llm:
        client = make_client(llm)
        body = {"query": "the cat", "documents": ["the dog"]}

        by_field = rerank(client, **body, instruction="a red bird")
        by_kwargs = rerank(client, **body, instruction="no", chat_template_kwargs={"instruction": "a red bird"})
        without = rerank(client, **body)

    assert by_field["results"] == by_kwargs["results"]
    assert by_field["usage"]["total_tokens"] == without["usage"]["total_tokens"] + 3
    assert by_field["results"] != without["results"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"documents": [{"content": []}]}, "body.documents.0.content"),
        ({"documents": [{"content": [{"type": "text"}]}]}, "body.documents.0.content.0.text"),
        ({"documents": [{"content": [{"text": "a"}]}]}, "body.documents.0.content.0"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_body_is_refused_with_the_field(client: TestClient, change: dict[str, Any], param: str) -> None:
    status, _, named = get_error(client, **change)

    assert (status, named) == (400, param)


def test_a_search_unit_is_a_hundred_documents(cross_encoder: LLM) -> None:
    found = rerank(make_client(cross_encoder), query="cat", documents=["dog"] * 101)

    assert found["meta"]["billed_units"] == {"search_units": 2}


def test_rank_fields_are_limited(client: TestClient) -> None:
    fields = [str(number) for number in range(65)]

    status, message, param = get_error(client, documents=[{"1": "x"}], rank_fields=fields)

    assert (status, param) == (400, "body.rank_fields")
    assert "rank_fields: expected array of length <= 64" in message
