"""Conversations through the engine, and tokens for their own sake."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.errors import BadRequest
from cenote.protocol.input_types import Chat
from cenote.protocol.requests import PoolRequest, Tokenization, Tokenized
from tests.engine.conftest import MakeEngine, asking, echoed
from tests.tiny import QWEN_TOKENS, save_tokenizer, tiny_qwen3

A, COLON = 1037, 1024  # letters follow each other
CLS, SEP = 101, 102
TEMPLATE = "{% for m in messages %}{{ m.role }} : {{ m.content }} {% endfor %}{{ word }}"
BARE = Tokenization(add_special_tokens=False)


def chat(*contents: Any, **options: Any) -> Chat:
    return Chat([{"role": "u", "content": content} for content in contents], **options)


def test_a_conversation_is_one_input_among_others(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE)

    answers = engine.pool_sync(asking(["a", chat("b", "c"), [7]], tokenization=BARE))

    assert echoed(answers) == [[A], [A + 20, COLON, A + 1, A + 20, COLON, A + 2], [7]]


def test_special_tokens_around_a_conversation_are_the_callers_choice(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE)

    assert echoed(engine.pool_sync(asking([chat("b")]))) == [[CLS, A + 20, COLON, A + 1, SEP]]


def test_arguments_of_the_server_reach_the_template(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE, default_chat_template_kwargs={"word": "z"})

    answers = engine.pool_sync(asking([chat("b"), chat("b", template_kwargs={"word": "y"})], tokenization=BARE))

    assert [ids[-1] for ids in echoed(answers)] == [A + 25, A + 24]


def test_the_content_format_of_the_server_reaches_the_template(make_engine: MakeEngine) -> None:
    template = "{% for m in messages %}{{ m.content | length }}{% endfor %}"
    conversation = chat([{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])

    for content_format, expected in (("auto", "3"), ("string", "3"), ("openai", "2")):
        engine = make_engine(chat_template=template, chat_template_content_format=content_format)
        (ids,) = echoed(engine.pool_sync(asking([conversation], tokenization=BARE)))
        assert engine.tokenizer.strings(ids) == [expected]


def test_a_conversation_without_a_template_says_what_is_missing(make_engine: MakeEngine) -> None:
    engine = make_engine()

    with pytest.raises(BadRequest, match="messages need a chat template"):
        engine.pool_sync(asking([chat("b")]))
    assert not engine.about.has_chat_template


def test_a_conversation_that_fails_leaves_the_others_alone(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE)

    answers = engine.pool_sync(asking([chat("b"), chat(7), chat("c")], tokenization=BARE, keep_going=True))

    assert [isinstance(answer, BadRequest) for answer in answers] == [False, True, False]


def test_tokens_come_with_their_strings_where_asked(make_engine: MakeEngine) -> None:
    engine = make_engine(chat_template=TEMPLATE)

    def tokenized(item: Any, **options: Any) -> Tokenized:
        return asyncio.run(engine.tokenize(item, **options))

    assert tokenized("a b") == Tokenized([CLS, A, A + 1, SEP])
    assert tokenized("a cats", add_special_tokens=False, strings=True) == Tokenized([A, 8870], ["a", "cats"])
    assert tokenized(chat("b"), add_special_tokens=False) == Tokenized([A + 20, COLON, A + 1])
    assert len(tokenized("a " * 1000).token_ids) == 1002  # four times what the model reads
    assert asyncio.run(engine.detokenize([CLS, A, SEP])) == "[CLS] a [SEP]"
    with pytest.raises(BadRequest, match="Token id 30522 is out of vocabulary"):
        asyncio.run(engine.detokenize([30522]))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LLM, Path]]:
    """A small model whose own files have a chat template."""
    folder = tmp_path_factory.mktemp("chatty")
    tiny_qwen3(folder)
    save_tokenizer(folder, QWEN_TOKENS, max_length=64, two_types=False)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        yield llm, folder


def test_the_template_and_the_special_tokens_of_the_files_are_used(chatty: tuple[LLM, Path]) -> None:
    llm, _ = chatty
    one = PoolRequest(task="embed", inputs=[chat("the cat", "is old")], tokenization=BARE)
    other = PoolRequest(task="embed", inputs=["the cat<|im_end|>is old<|im_end|>"], tokenization=BARE)

    (as_chat,), (as_text,) = llm.engine.pool_sync(one), llm.engine.pool_sync(other)

    assert as_chat.token_ids.tolist() == as_text.token_ids.tolist()  # type: ignore[union-attr]
    assert as_chat.data.equal(as_text.data)  # type: ignore[union-attr]
    assert len(as_chat.token_ids) == 6  # type: ignore[union-attr]
    assert llm.engine.about.has_chat_template
    assert llm.engine.about.tokenizer_info["chat_template"].startswith("{% for m in messages %}")
