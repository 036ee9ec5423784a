"""The entities route returns the entities of LLM.entities."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest
from cenote.protocol.results import EntityResult
from tests.api.app_client import assert_refused, make_client, post_json
from tests.api.front_ends.remote_link import call_both
from tests.factories import LLMFactory
from tests.tiny import tiny_bert_token_classifier

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = ["The big cät is in Berlin 😀, who live there?", "a", "", "how big is the old river in berlin"]
LONG = " ".join(TEXTS) * 5


@pytest.fixture(scope="module")
def entity_llm(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("entity_llm")
    id2label = dict(enumerate(LABELS))
    tiny_bert_token_classifier(folder, id2label=id2label, label2id={name: row for row, name in id2label.items()})
    return open_llm(folder)


@pytest.fixture(scope="module")
def client(entity_llm: LLM) -> TestClient:
    return make_client(entity_llm)


def post_entities(client: TestClient, path: str = "/entities", **body: Any) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = post_json(client, path, **body)["data"]
    return data


def find_offline(llm: LLM, texts: Any, **options: Any) -> list[list[dict[str, Any]]]:
    outputs = llm.entities(texts, use_tqdm=False, **options)
    return [[entity.as_dict() for entity in output.outputs.entities] for output in outputs]


@pytest.mark.parametrize("strategy", [None, "none", "simple", "first", "average", "max"])
def test_the_route_returns_what_llm_entities_returns(client: TestClient, entity_llm: LLM, strategy: Any) -> None:
    expected = find_offline(entity_llm, TEXTS, aggregation_strategy=strategy or "simple")

    data = post_entities(client, input=TEXTS, aggregation_strategy=strategy)

    assert [item["entities"] for item in data] == expected
    assert any(expected)
    assert [item["index"] for item in data] == [0, 1, 2, 3]
    assert all(item["object"] == "entities" and item["truncated"] is False for item in data)


def test_entities_have_the_fields_of_a_transformers_pipeline(client: TestClient) -> None:
    (merged,) = post_entities(client, input=TEXTS[0])
    (single,) = post_entities(client, input=TEXTS[0], aggregation_strategy="none")

    assert merged["entities"][0].keys() == {"entity_group", "score", "word", "start", "end", "text"}
    assert single["entities"][0].keys() == {"entity", "score", "index", "word", "start", "end", "text"}


def test_other_paths_and_the_pooling_route_return_the_same(client: TestClient) -> None:
    body: dict[str, Any] = {"input": TEXTS, "aggregation_strategy": "max", "ignore_labels": []}
    expected = post_entities(client, **body)

    assert post_entities(client, "/v1/entities", **body) == expected
    assert post_entities(client, "/pooling", **body) == expected
    assert post_entities(client, "/pooling", **body, task="token_classify") == expected
    assert post_entities(client, "/invocations", **body) == expected


def test_ignored_labels_are_left_out(client: TestClient) -> None:
    (everything,) = post_entities(client, input=TEXTS[0], ignore_labels=[])
    groups = {entity["entity_group"] for entity in everything["entities"]}

    assert len(groups) > 1
    for group in groups:
        (some,) = post_entities(client, input=TEXTS[0], ignore_labels=sorted(groups - {group}))
        assert some["entities"] == [entity for entity in everything["entities"] if entity["entity_group"] == group]


def test_a_truncated_text_is_reported(client: TestClient) -> None:
    reply = client.post("/entities", json={"input": ["a", LONG], "return_token_counts": True})

    first, second = reply.json()["data"]
    assert (first["truncated"], second["truncated"]) == (False, True)
    assert reply.headers["x-truncated-inputs"] == "1"
    counts = second["token_counts"]
    assert counts["used"] == 66 and counts["used"] + counts["truncated"] == counts["given"]
    assert reply.json()["usage"]["prompt_tokens"] == 3 + 66 == int(reply.headers["x-prompt-tokens"])


def test_with_stride_a_long_text_is_processed_in_windows(client: TestClient, entity_llm: LLM) -> None:
    (item,) = post_entities(client, input=LONG, stride=10, ignore_labels=[])

    assert item["truncated"] is False
    assert [item["entities"]] == find_offline(entity_llm, LONG, stride=10, ignore_labels=[])
    assert item["entities"][-1]["end"] == len(LONG)
    body: dict[str, Any] = {"input": LONG, "stride": 10, "ignore_labels": []}
    (pooled,) = post_entities(client, "/pooling", **body, aggregation_strategy="simple")
    assert pooled == item


def test_invalid_requests_are_refused_with_the_field(client: TestClient, entity_llm: LLM) -> None:
    text = {"input": "the cat"}
    for body, words, param in (
        ({}, "input is required", "body.input"),
        ({"input": [7, 8]}, "input.0: expected str", "body.input.0"),
        ({"input": []}, "You must pass at least one prompt", "input"),
        (text | {"aggregation_strategy": "best"}, "expected one of: none, simple, first", "body.aggregation_strategy"),
        (text | {"ignore_labels": "O"}, "ignore_labels: expected", "body.ignore_labels"),
        (text | {"stride": -1}, "stride: expected int >= 0", "body.stride"),
        (text | {"stride": 64}, "from 0 to 63: a window holds 64 tokens of text", "stride"),
        (text | {"stride": 1, "aggregation_strategy": "none"}, "would be returned twice", "aggregation_strategy"),
        (text | {"truncate_prompt_tokens": 2}, "must be greater than the 2 special tokens", "truncate_prompt_tokens"),
    ):
        assert_refused(client.post("/entities", json=body), words, param)
    reply = client.post("/pooling", json={"input": [[7, 8]], "aggregation_strategy": "simple"})
    assert_refused(reply, "requires texts, not token ids", "input")
    assert reply.json()["error"]["index"] == 0
    small = make_client(entity_llm, max_request_items=2)
    assert_refused(small.post("/entities", json={"input": ["a"] * 3}), "input has 3 items", "input")
    assert_refused(client.post("/entities", json=text | {"model": "x"}), "`x` does not exist", None, status=404)


def test_a_model_without_entities_refuses_the_route(llm: LLM) -> None:
    client = make_client(llm)

    reply = client.post("/entities", json={"input": "a"})
    assert_refused(reply, "The model does not support Entities API", None)
    assert "/entities" not in client.get("/openapi.json").json()["paths"]
    body = {"input": "a", "task": "token_embed", "aggregation_strategy": "simple"}
    assert_refused(
        client.post("/pooling", json=body), "requires the task token_classify, got token_embed", "aggregation_strategy"
    )


@pytest.mark.parametrize("strategy", ["none", "average"])
def test_remote_entities_equal_local_entities(entity_llm: LLM, strategy: Any) -> None:
    request = EntityRequest(
        pool_request=PoolRequest(
            task="token_classify", inputs=[*TEXTS, LONG], tokenization=TokenizationParams(truncate_prompt_tokens=12)
        ),
        aggregation_strategy=strategy,
        ignore_labels=["O", "B-LOC"],
    )

    local, remote = call_both(entity_llm.engine, lambda engine: engine.entities(request))

    assert all(isinstance(result, EntityResult) for result in remote)
    assert [result.entities for result in local] == [result.entities for result in remote]
    assert any(result.entities for result in remote)
    for one, other in zip(local, remote, strict=True):
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)
        assert one.truncated == other.truncated
    assert remote[-1].truncated
    assert request.pool_request.timing.inference_s > 0
