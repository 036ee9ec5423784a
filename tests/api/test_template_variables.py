"""Variables of a template, which are rendered for every conversation of a request, are a part of its size."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.admission.cost import estimate_pool, estimate_score
from cenote.engine.text_engine import MAX_INLINE_CHARS
from cenote.protocol.input_types import Conversation, compute_inputs_size
from cenote.protocol.requests import PoolRequest, ScoreRequest
from tests.api.app_client import assert_refused, save_chat_embedder
from tests.factories import LLMFactory

TOOLS: dict[str, Any] = {"tools": [{"name": "tool"}] * 1000}


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(save_chat_embedder)


def make_conversations(count: int, variables: dict[str, Any]) -> list[Conversation]:
    return [Conversation([{"role": "user", "content": "a"}], template_kwargs=variables) for _ in range(count)]


def test_a_conversation_with_large_variables_is_not_rendered_in_the_event_loop() -> None:
    assert compute_inputs_size(make_conversations(1, {})) < MAX_INLINE_CHARS
    assert compute_inputs_size(make_conversations(1, TOOLS)) > MAX_INLINE_CHARS
    assert compute_inputs_size(make_conversations(64, TOOLS)) > 60 * compute_inputs_size(make_conversations(1, TOOLS))


def test_variables_count_as_often_as_they_are_rendered(llm: LLM) -> None:
    model_info = llm.engine.model_info

    one, many = (
        estimate_pool(PoolRequest(task="embed", inputs=make_conversations(count, TOOLS)), model_info, None)
        for count in (1, 50)
    )

    assert 49 < many.num_bytes / one.num_bytes < 51 and one.num_bytes > 8000
    assert many.num_variable_chars == 50 * one.num_variable_chars and many.num_chars == 50 * (one.num_chars or 0)
    pairs = estimate_score(ScoreRequest(queries=["a"], documents=["b"] * 50, template_kwargs=TOOLS), model_info)
    assert pairs.num_variable_chars == many.num_variable_chars


def test_a_request_that_repeats_large_variables_is_refused(client: TestClient) -> None:
    messages = [[{"role": "user", "content": "the city"}]] * 64
    tools = [{"name": "a"}] * 20_000

    reply = client.post("/v1/embeddings", json={"messages": messages, "chat_template_kwargs": {"tools": tools}})

    assert_refused(reply, "rendered for each of the 64 conversations, ", "chat_template_kwargs")
    body = {"messages": messages, "chat_template_kwargs": {"tools": tools[:100]}}
    assert client.post("/v1/embeddings", json=body).status_code == 200
