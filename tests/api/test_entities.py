"""The route of entities: what LLM.entities finds, as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.entities import EntitiesBody
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest
from cenote.protocol.results import EntityResult
from tests.api.app_client import assert_refused, load_llm, make_client, null_fields
from tests.api.front_ends.test_remote_engine import call_both
from tests.tiny import tiny_bert_token_classifier

NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXTS = ["The big cät is in Berlin 😀, who live there?", "a", "", "how big is the old river in berlin"]
LONG = " ".join(TEXTS) * 5


@pytest.fixture(scope="module")
def entity_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("tagger")
    id2label = dict(enumerate(NAMES))
    tiny_bert_token_classifier(folder, id2label=id2label, label2id={name: row for row, name in id2label.items()})
    with load_llm(folder) as llm:
        yield llm


@pytest.fixture(scope="module")
def client(tagger: LLM) -> TestClient:
    return make_client(tagger)


def found(client: TestClient, path: str = "/entities", **body: Any) -> list[dict[str, Any]]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    data: list[dict[str, Any]] = reply.json()["data"]
    return data


def offline(llm: LLM, texts: Any, **options: Any) -> list[list[dict[str, Any]]]:
    outputs = llm.entities(texts, use_tqdm=False, **options)
    return [[each.as_dict() for each in output.outputs.entities] for output in outputs]


@pytest.mark.parametrize("strategy", [None, "none", "simple", "first", "average", "max"])
def test_the_route_answers_as_the_method_does(client: TestClient, tagger: LLM, strategy: Any) -> None:
    expected = offline(tagger, TEXTS, aggregation_strategy=strategy or "simple")

    data = found(client, input=TEXTS, aggregation_strategy=strategy)

    assert [item["entities"] for item in data] == expected
    assert any(expected)
    assert [item["index"] for item in data] == [0, 1, 2, 3]
    assert all(item["object"] == "entities" and item["truncated"] is False for item in data)


def test_the_keys_are_those_that_pipelines_have(client: TestClient) -> None:
    (merged,) = found(client, input=TEXTS[0])
    (single,) = found(client, input=TEXTS[0], aggregation_strategy="none")

    assert merged["entities"][0].keys() == {"entity_group", "score", "word", "start", "end", "text"}
    assert single["entities"][0].keys() == {"entity", "score", "index", "word", "start", "end", "text"}


def test_other_paths_and_the_pooling_route_answer_the_same(client: TestClient) -> None:
    body: dict[str, Any] = {"input": TEXTS, "aggregation_strategy": "max", "ignore_labels": []}
    expected = found(client, **body)

    assert found(client, "/v1/entities", **body) == expected
    assert found(client, "/pooling", **body) == expected
    assert found(client, "/pooling", **body, task="token_classify") == expected
    assert found(client, "/invocations", **body) == expected


def test_labels_are_left_out_as_asked(client: TestClient) -> None:
    (everything,) = found(client, input=TEXTS[0], ignore_labels=[])
    groups = {each["entity_group"] for each in everything["entities"]}

    assert len(groups) > 1
    for group in groups:
        (some,) = found(client, input=TEXTS[0], ignore_labels=sorted(groups - {group}))
        assert some["entities"] == [each for each in everything["entities"] if each["entity_group"] == group]


def test_a_truncated_text_is_reported(client: TestClient) -> None:
    reply = client.post("/entities", json={"input": ["a", LONG], "return_token_counts": True})

    first, second = reply.json()["data"]
    assert (first["truncated"], second["truncated"]) == (False, True)
    assert reply.headers["x-truncated-inputs"] == "1"
    counts = second["token_counts"]
    assert counts["used"] == 66 and counts["used"] + counts["truncated"] == counts["given"]
    assert reply.json()["usage"]["prompt_tokens"] == 3 + 66 == int(reply.headers["x-prompt-tokens"])


def test_a_long_text_is_read_to_its_end_in_windows(client: TestClient, tagger: LLM) -> None:
    (item,) = found(client, input=LONG, stride=10, ignore_labels=[])

    assert item["truncated"] is False
    assert [item["entities"]] == offline(tagger, LONG, stride=10, ignore_labels=[])
    assert item["entities"][-1]["end"] == len(LONG)
    body: dict[str, Any] = {"input": LONG, "stride": 10, "ignore_labels": []}
    (pooled,) = found(client, "/pooling", **body, aggregation_strategy="simple")
    assert pooled == item


def test_every_other_field_may_be_null(client: TestClient) -> None:
    expected = found(client, input="the cat")

    assert found(client, **null_fields(EntitiesBody), input="the cat", x=1) == expected


def test_what_is_wrong_is_named(client: TestClient, tagger: LLM) -> None:
    text = {"input": "the cat"}
    for body, words, param in (
        ({}, "input is required", "body.input"),
        ({"input": [7, 8]}, "input.0: expected str", "body.input.0"),
        ({"input": []}, "You must pass at least one prompt", "input"),
        (text | {"aggregation_strategy": "best"}, "there are: none, simple, first", "body.aggregation_strategy"),
        (text | {"ignore_labels": "O"}, "ignore_labels: expected", "body.ignore_labels"),
        (text | {"stride": -1}, "stride: expected int >= 0", "body.stride"),
        (text | {"stride": 64}, "from 0 to 63: a window has room for 64; got 64", "stride"),
        (text | {"stride": 1, "aggregation_strategy": "none"}, "would come twice", "aggregation_strategy"),
        (text | {"truncate_prompt_tokens": 2}, "no room for text", "truncate_prompt_tokens"),
    ):
        assert_refused(client.post("/entities", json=body), words, param)
    reply = client.post("/pooling", json={"input": [[7, 8]], "aggregation_strategy": "simple"})
    assert_refused(reply, "give texts, not token ids", "input")
    assert reply.json()["error"]["index"] == 0
    small = make_client(tagger, max_request_items=2)
    assert_refused(small.post("/entities", json={"input": ["a"] * 3}), "input has 3 items", "input")
    assert_refused(client.post("/entities", json=text | {"model": "x"}), "`x` does not exist", None, status=404)


def test_a_model_without_entities_refuses_the_route(llm: LLM) -> None:
    client = make_client(llm)

    reply = client.post("/entities", json={"input": "a"})
    assert_refused(reply, "The model does not support Entities API", None, status=501)
    assert "/entities" not in client.get("/openapi.json").json()["paths"]
    body = {"input": "a", "task": "token_embed", "aggregation_strategy": "simple"}
    assert_refused(
        client.post("/pooling", json=body), "for the task token_classify, not token_embed", "aggregation_strategy"
    )


@pytest.mark.parametrize("strategy", ["none", "average"])
def test_remote_entities_equal_local_entities(tagger: LLM, strategy: Any) -> None:
    request = EntityRequest(
        pool_request=PoolRequest(
            task="token_classify", inputs=[*TEXTS, LONG], tokenization=TokenizationParams(truncate_prompt_tokens=12)
        ),
        aggregation_strategy=strategy,
        ignore_labels=["O", "B-LOC"],
    )

    near, far = call_both(tagger.engine, lambda engine: engine.entities(request))

    assert all(isinstance(each, EntityResult) for each in far)
    assert [each.entities for each in near] == [each.entities for each in far]
    assert any(each.entities for each in far)
    for one, other in zip(near, far, strict=True):
        assert (one.num_tokens, one.num_input_tokens) == (other.num_tokens, other.num_input_tokens)
        assert one.truncated == other.truncated
    assert far[-1].truncated
    assert request.pool_request.timing.inference_s > 0
