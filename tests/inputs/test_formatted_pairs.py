"""The fixed text of a score template, and the pairs that already contain it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cenote.errors import BadRequest
from cenote.inputs.formatted_pairs import PairFormat, make_pair_format
from cenote.inputs.pairs import render_pair
from cenote.loading.rerankers import TEMPLATE_NAMES, load_builtin_template
from cenote.protocol.input_types import ScoreTemplate, TextPair

QUERY, DOCUMENT = "who lives\nin berlin? ", " people,\n\nand a bird"
# the document comes first: two texts in the order query, document cannot be this prompt
DOCUMENT_FIRST = ("jina_reranker_m0", "kalm_reranker_v1", "ctxl_rerank_v2")
# the prompt starts with the instruction: only the default one is recognised
INSTRUCTION_FIRST = "querit"
ZERANK = "zerank"  # the built-in template removes white space around the texts
ZERANK_2 = (
    "<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n<|im_start|>user\n{{ messages[1].content }}<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def make_format(template: ScoreTemplate) -> PairFormat:
    pair_format = make_pair_format(template, {})
    assert pair_format is not None
    return pair_format


def templates() -> list[ScoreTemplate]:
    names = [name for name in TEMPLATE_NAMES if name not in (*DOCUMENT_FIRST, ZERANK)]
    return [*map(load_builtin_template, names), ScoreTemplate(ZERANK_2, "zerank-2")]


@pytest.mark.parametrize("instruction", [None, "find the\nanswer"])
@pytest.mark.parametrize("template", templates(), ids=lambda template: template.name)
def test_a_rendered_pair_is_recognised_wherever_its_separator_is_split(
    template: ScoreTemplate, instruction: str | None
) -> None:
    pair_format = make_format(template)
    variables = {} if instruction is None else {"instruction": instruction}
    prompt = render_pair(TextPair(QUERY, DOCUMENT, None, variables), {}, template)
    separator_at = prompt.index(pair_format.separator + DOCUMENT)
    if template.name == INSTRUCTION_FIRST and instruction is not None:
        assert pair_format.split(prompt[:separator_at], prompt[separator_at:]) is None
        return

    for index in range(separator_at, separator_at + len(pair_format.separator) + 1):
        formatted = pair_format.split(prompt[:index], prompt[index:])

        assert formatted is not None
        assert (formatted.query.text, formatted.document.text) == (QUERY, DOCUMENT)
        assert formatted.join(QUERY, DOCUMENT) == prompt
        assert formatted.join("a", "b") == prompt.replace(QUERY, "a").replace(DOCUMENT, "b")


@pytest.mark.parametrize("template", templates(), ids=lambda template: template.name)
def test_plain_texts_are_not_recognised(template: ScoreTemplate) -> None:
    pair_format = make_format(template)
    prompt = render_pair(TextPair(QUERY, DOCUMENT), {}, template)
    index = prompt.index(pair_format.separator + DOCUMENT) + 1
    query, document = prompt[:index], prompt[index:]

    for texts in (
        (QUERY, DOCUMENT),
        (QUERY, document),
        (f" {query}", document),
        (QUERY + query, document),
        (query[:-2], document),
        (query, DOCUMENT),
        ("", ""),
    ):
        assert pair_format.split(*texts) is None
        if not texts[0].startswith(tuple(opening.start for opening in pair_format.openings)):
            pair_format.check_plain(texts[0])


def test_only_a_distinctive_opening_refuses_a_query() -> None:
    with pytest.raises(BadRequest, match="qwen3_reranker"):
        template = load_builtin_template("qwen3_reranker")
        make_format(template).check_plain(render_pair(TextPair(QUERY, DOCUMENT), {}, template))
    for name in ("bge_reranker_v2_gemma", "nemotron_rerank"):
        template = load_builtin_template(name)
        make_format(template).check_plain(render_pair(TextPair(QUERY, DOCUMENT), {}, template))


@pytest.mark.parametrize("name", DOCUMENT_FIRST)
def test_a_template_with_the_document_first_has_no_format(name: str) -> None:
    assert make_pair_format(load_builtin_template(name), {}) is None


def test_a_template_of_the_user_has_no_format() -> None:
    template = load_builtin_template("qwen3_reranker")

    assert make_pair_format(replace(template, is_user_given=True), {}) is None
    assert make_pair_format(None, {}) is None


def test_texts_that_the_template_would_change_are_not_recognised() -> None:
    pair_format = make_format(load_builtin_template("nemotron_vl_rerank"))

    assert pair_format.split("question:who? \n \n ", "passage:a bird") is not None
    assert pair_format.split("question:who? \n \n ", "passage:<image> a bird") is None


def test_an_empty_text_inside_the_format_is_recognised() -> None:
    template = load_builtin_template("qwen3_reranker")
    prompt = render_pair(TextPair("", ""), {}, template)
    index = prompt.index("<Document>: ")

    formatted = make_format(template).split(prompt[:index], prompt[index:])

    assert formatted is not None and formatted.query.text == formatted.document.text == ""
