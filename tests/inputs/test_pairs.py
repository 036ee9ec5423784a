"""Query and document in one sequence: score templates and longest-first truncation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cenote.errors import BadRequest
from cenote.inputs import jinja_sandbox
from cenote.inputs.chat import ChatSettings
from cenote.inputs.jinja_sandbox import run_template
from cenote.inputs.limits import Limits, split_budget
from cenote.inputs.pairs import render_pair, truncate_ids
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.template_kwargs import check_template_kwargs
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.rerankers import TEMPLATE_NAMES, load_builtin_template
from cenote.protocol.input_types import TextPair
from cenote.protocol.params import TokenizationParams

ROLE_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


def test_a_template_gets_both_texts_by_role() -> None:
    assert render_pair(TextPair("q", "d", ROLE_TEMPLATE)) == "query: q\ndocument: d\n"


def test_a_template_gets_the_callers_kwargs() -> None:
    template = "{{ instruction }}|{{ tools }}|{{ messages[0].content }}|{{ messages[1]['content'] }}"

    assert render_pair(TextPair("q", "d", template, {"instruction": "find"})) == "find|None|q|d"


def test_a_template_gets_the_special_tokens(wordpiece: Tokenizer) -> None:
    settings = ChatSettings(special_tokens={"sep_token": "[SEP]"})
    renderer = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, chat_settings=settings))
    pair = TextPair("a", "b", "{{ messages[0].content }}{{ sep_token }}{{ messages[1].content }}")

    assert renderer.tokenize(pair, add_special_tokens=False) == [1037, 102, 1038]


def test_an_undefined_variable_is_empty() -> None:
    assert render_pair(TextPair("q", "d", "<{{ instruction }}>")) == "<>"


def test_without_a_template_the_document_follows_the_query() -> None:
    assert render_pair(TextPair("q", "d")) == "qd"


def test_query_and_document_are_not_evaluated_as_templates() -> None:
    assert render_pair(TextPair("{{ 1 + 1 }}", "{% raw %}", "{{ messages[0].content }}{{ messages[1].content }}")) == (
        "{{ 1 + 1 }}{% raw %}"
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0].content",
        "{% for m in messages %}",
        "{% nonsense %}",
        "{{ messages | nonsense }}",
        "{{ missing.field.deeper }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.text }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% include 'other' %}",
    ],
)
def test_an_invalid_template_is_a_bad_request(template: str) -> None:
    with pytest.raises(BadRequest, match="the score template"):
        render_pair(TextPair("q", "d", template))


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ joiner.__init__.__globals__.os.popen('true') }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises(BadRequest, match="the score template failed"):
        render_pair(TextPair("q", "d", template))


@pytest.mark.parametrize("name", ["chat_template", "tools", "tokenize", "messages"])
def test_reserved_template_kwargs_are_refused(name: str) -> None:
    message = "chat_template_kwargs contains reserved keys that conflict with fixed scorer arguments: .*" + name

    with pytest.raises(BadRequest, match=message):
        check_template_kwargs({name: 1}, "score")
    with pytest.raises(BadRequest, match=message):
        render_pair(TextPair("q", "d", "x", {name: 1}))


def test_a_joined_text_is_tokenized_with_special_tokens(wordpiece: Tokenizer) -> None:
    without_separator = Renderer(
        wordpiece, RendererSettings(vocab_size=30522, hidden_size=384, has_pair_separator=False)
    )
    with_separator = Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384))
    pairs = [TextPair("a ", "b"), TextPair("a", "b", "{{ messages[0].content }} {{ messages[1].content }}")]

    for renderer, pair in ((without_separator, pairs[0]), (without_separator, pairs[1]), (with_separator, pairs[1])):
        (rendered,) = renderer.render([pair], TokenizationParams(), Limits(16))
        assert isinstance(rendered, TokenizedInput)
        assert rendered.token_ids.tolist() == [101, 1037, 1038, 102]
        assert rendered.type1_start == 4  # one text, one token type


def test_an_invalid_template_fails_its_own_pair_only(renderer: Renderer) -> None:
    inputs = [TextPair("a", "b", "{{ 1 / 0 }}"), TextPair("a", "b"), "c"]

    rendered = renderer.render(inputs, TokenizationParams(), Limits(16))

    assert [isinstance(item, BadRequest) for item in rendered] == [True, False, False]


def test_the_longer_text_is_truncated_first() -> None:
    assert split_budget([3, 10], 20) == [3, 10]
    assert split_budget([3, 10], 8) == [3, 5]
    assert split_budget([10, 3], 8) == [5, 3]
    assert split_budget([10, 10], 7) == [3, 4]
    assert split_budget([10, 3], 5) == [3, 2]
    assert split_budget([4, 4], 0) == [0, 0]
    assert split_budget([4, 4], -1) == [0, 0]
    assert split_budget([9, 1, 5], 9) == [4, 1, 4]


def test_truncated_texts_use_the_whole_budget() -> None:
    rng = random.Random(0)
    for _ in range(5000):
        lengths, budget = [rng.randrange(40), rng.randrange(40)], rng.randrange(60)
        kept = split_budget(lengths, budget)
        assert sum(kept) == min(sum(lengths), budget)
        assert all(0 <= num_kept <= length for num_kept, length in zip(kept, lengths, strict=True))


def test_truncation_keeps_the_first_or_the_last_ids() -> None:
    ids = np.arange(5, dtype=np.int32)

    assert truncate_ids(ids, 2, "right").tolist() == [0, 1]
    assert truncate_ids(ids, 2, "left").tolist() == [3, 4]
    assert truncate_ids(ids, 0, "left").tolist() == []
    assert truncate_ids(ids, 9, "left").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
@pytest.mark.parametrize("document", ["the city of berlin", "", " {{ query }}\n\n", "\0a document\0", "<Document>: "])
def test_the_cached_text_around_a_document_matches_the_template(name: str, document: str) -> None:
    template = load_builtin_template(name)
    for variables in ({}, {"instruction": "find books"}, {"instruct": 5}):
        for query in ("how big?", "a \0a document\0"):
            pair = TextPair(query, document, None, variables)

            assert render_pair(pair, {}, template) == render_pair(
                pair, {}, replace(template, is_document_verbatim=False)
            )


def test_documents_of_one_query_run_their_template_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template, num_runs = load_builtin_template("qwen3_reranker"), 0
    special_tokens: dict[str, str] = {}

    def counted(*args: Any, **kwargs: Any) -> str:
        nonlocal num_runs
        num_runs += 1
        return run_template(*args, **kwargs)

    monkeypatch.setattr(jinja_sandbox, "run_template", counted)
    texts = [render_pair(TextPair("an uncached query", f"document {n}"), special_tokens, template) for n in range(5)]

    assert num_runs == 1 and len(set(texts)) == 5
