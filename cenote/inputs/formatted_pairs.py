"""Recognise pairs whose texts already contain the model's score template, as programs written for vLLM send them.

The query decides: documents often come from third parties, and must not be able to disable the template.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from cenote.errors import BadRequest
from cenote.inputs.pairs import DOCUMENT_PLACEHOLDER, render_pair
from cenote.protocol.input_types import ScoreTemplate, TextPair

logger = logging.getLogger("cenote")

QUERY_PLACEHOLDER = "\0a query\0"
INSTRUCTION_PLACEHOLDER = "\0an instruction\0"
# a shorter opening, such as "A: ", may be the start of an ordinary query
MIN_DISTINCTIVE_CHARS = 32


class FormattedText(msgspec.Struct, frozen=True):
    """A text and the parts of the score template that were sent with it."""

    before: str
    text: str
    after: str

    def join(self, text: str) -> str:
        """Return another text with the same parts of the template."""
        return self.before + text + self.after


class FormattedPair(msgspec.Struct, frozen=True):
    query: FormattedText
    document: FormattedText

    def join(self, query: str, document: str) -> str:
        return self.query.join(query) + self.document.join(document)


class _Opening(msgspec.Struct, frozen=True):
    """The fixed text of a template before the query."""

    start: str
    label: str = ""  # between instruction and query; empty: no instruction


class PairFormat(msgspec.Struct, frozen=True):
    """The fixed text of a score template around instruction, query and document."""

    template: ScoreTemplate
    special_tokens: Mapping[str, str]
    openings: tuple[_Opening, ...]
    separator: str  # between query and document
    ending: str  # after the document

    def split(self, query: str, document: str) -> FormattedPair | None:
        """Return the parts of a pair that together are the rendered template; None for plain texts."""
        match = self._match_opening(query)
        if match is None or not document.endswith(self.ending):
            return None
        opening, start = match
        for length in range(len(self.separator) + 1):  # the separator may be split between the two texts anywhere
            query_end, document_start = self.separator[:length], self.separator[length:]
            is_split_here = query.endswith(query_end, start) and document.startswith(document_start)
            if is_split_here and len(document) >= len(document_start) + len(self.ending):
                pair = FormattedPair(
                    FormattedText(query[:start], query[start : len(query) - length], query_end),
                    FormattedText(
                        document_start,
                        document[len(document_start) : len(document) - len(self.ending)],
                        self.ending,
                    ),
                )
                return pair if self._is_rendered(pair, opening) else None
        return None

    def check_plain(self, query: str) -> None:
        """Raise BadRequest for a query in the format of the template, whose document is not."""
        match = self._match_opening(query)
        if match is not None and len(match[0].start + match[0].label) >= MIN_DISTINCTIVE_CHARS:
            raise BadRequest(
                f"the query contains the score template {self.template.name}, but its document does not start with "
                f"{self.separator.lstrip()!r} and end with {self.ending!r}; send both texts with the template or both "
                "without"
            )

    def check_instruction(self, template_kwargs: Mapping[str, Any]) -> None:
        """Raise BadRequest for an instruction beside a formatted pair, where it would have no effect."""
        is_given = any(template_kwargs.get(name) for name in ("instruction", "instruct"))
        if is_given and any(opening.label for opening in self.openings):
            raise BadRequest(
                f"the texts already contain the score template {self.template.name}, where the instruction belongs; "
                "remove instruction, or send the texts without the template",
                param="instruction",
            )

    def _match_opening(self, query: str) -> tuple[_Opening, int] | None:
        """Return the opening of a formatted query and the index where its text starts; None for a plain query."""
        for opening in self.openings:
            if query.startswith(opening.start):
                label_at = query.find(opening.label, len(opening.start))
                if label_at >= 0:
                    return opening, label_at + len(opening.label)
        return None

    def _is_rendered(self, pair: FormattedPair, opening: _Opening) -> bool:
        """Whether the template renders the plain texts to the given ones; some templates change texts."""
        if self.template.is_document_verbatim:
            return True
        query, document, before = pair.query.text, pair.document.text, pair.query.before
        instruction = before[len(opening.start) : len(before) - len(opening.label)]
        texts = TextPair(query, document, None, {"instruction": instruction} if opening.label else {})
        return render_pair(texts, self.special_tokens, self.template) == pair.join(query, document)


def make_pair_format(template: ScoreTemplate | None, special_tokens: Mapping[str, str]) -> PairFormat | None:
    """Return the format of a model's own template; None if it does not start with a text of its own."""
    if template is None or template.is_user_given:
        return None
    plain = _split_rendered(template, special_tokens, {})
    if plain is None:
        return None
    opening, separator, ending = plain
    openings = [_Opening(opening)]  # with an instruction first: without one, its default is part of the opening
    with_instruction = _split_rendered(template, special_tokens, {"instruction": INSTRUCTION_PLACEHOLDER})
    if with_instruction is not None and with_instruction[1:] == (separator, ending):
        start, found, label = with_instruction[0].partition(INSTRUCTION_PLACEHOLDER)
        if found and label:
            openings.insert(0, _Opening(start, label))
    openings = [opening for opening in openings if opening.start]
    if not separator or not openings:
        return None
    return PairFormat(template, special_tokens, tuple(openings), separator, ending)


def _split_rendered(
    template: ScoreTemplate, special_tokens: Mapping[str, str], variables: Mapping[str, str]
) -> tuple[str, str, str] | None:
    """Return the rendered text before the query, between query and document, and after the document."""
    pair = TextPair(QUERY_PLACEHOLDER, DOCUMENT_PLACEHOLDER, None, variables)
    try:
        rendered = render_pair(pair, special_tokens, template)
    except BadRequest:
        return None
    if rendered.count(QUERY_PLACEHOLDER) != 1 or rendered.count(DOCUMENT_PLACEHOLDER) != 1:
        return None
    opening, _, rest = rendered.partition(QUERY_PLACEHOLDER)
    separator, found, ending = rest.partition(DOCUMENT_PLACEHOLDER)
    return (opening, separator, ending) if found else None


@lru_cache  # once per template
def log_formatted(template_name: str) -> None:
    logger.info(
        "queries and documents already contain the score template %s, which is not applied to them again",
        template_name,
    )
