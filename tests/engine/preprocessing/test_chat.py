"""Conversations as inputs of the engine: options of the server and files of the model reach the template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.protocol.input_types import Conversation
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import PoolRequest
from tests.engine.conftest import MakeEngine, echoed_token_ids, make_request
from tests.tiny import QWEN_TOKENS, save_tokenizer, tiny_qwen3

A, COLON = 1037, 1024  # the ids of letters are consecutive
CLS, SEP = 101, 102
TEMPLATE = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}{{ word }}"
BARE = TokenizationParams(add_special_tokens=False)


def make_conversation(*contents: Any, **options: Any) -> Conversation:
    return Conversation([{"role": "u", "content": content} for content in contents], **options)


def test_default_chat_template_kwargs_reach_the_template(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE, default_chat_template_kwargs={"word": "z"})

    results = engine.pool_sync(
        make_request([make_conversation("b"), make_conversation("b", template_kwargs={"word": "y"})], tokenization=BARE)
    )

    assert [ids[-1] for ids in echoed_token_ids(results)] == [A + 25, A + 24]


def test_the_content_format_of_the_server_reaches_the_template(make_engine: MakeEngine) -> None:
    template = "{% for m in messages %}{{ m.content | length }}{% endfor %}"
    conversation = make_conversation([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])

    for content_format, expected in (("auto", "3"), ("string", "3"), ("openai", "2")):
        engine = make_engine(chat_template=template, chat_template_content_format=content_format)
        (ids,) = echoed_token_ids(engine.pool_sync(make_request([conversation], tokenization=BARE)))
        assert engine.tokenizer.convert_ids_to_tokens(ids) == [expected]


@pytest.fixture(scope="module")
def chat_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Path]]:
    """A small model with a chat template in its folder."""
    folder = tmp_path_factory.mktemp("chat")
    tiny_qwen3(folder)
    save_tokenizer(folder, QWEN_TOKENS, max_length=64, two_types=False)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        yield llm, folder


def test_the_template_and_the_special_tokens_of_the_files_are_used(chat_llm: tuple[LLM, Path]) -> None:
    llm, _ = chat_llm
    conversation = PoolRequest(task="embed", inputs=[make_conversation("the cat", "is old")], tokenization=BARE)
    text = PoolRequest(task="embed", inputs=["the cat<|im_end|>is old<|im_end|>"], tokenization=BARE)

    (as_chat,), (as_text,) = llm.engine.pool_sync(conversation), llm.engine.pool_sync(text)

    assert as_chat.token_ids.tolist() == as_text.token_ids.tolist()  # type: ignore[union-attr]
    assert np.array_equal(as_chat.data, as_text.data)  # type: ignore[union-attr]
    assert len(as_chat.token_ids) == 6  # type: ignore[union-attr]
    assert llm.engine.model_info.has_chat_template
    assert llm.engine.model_info.tokenizer_info["chat_template"].startswith("{% for m in messages %}")
