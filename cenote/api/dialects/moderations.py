"""OpenAI moderations API for text classifiers: the categories are the labels of the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from cenote.api.dialects.dialect import CLASSIFICATION, Dialect, Route
from cenote.api.dialects.tei_fields import Prediction
from cenote.api.dialects.text_requests import check_not_empty, classify, make_truncation
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest

routes = Routes(Route)

FLAG_THRESHOLD = 0.5
# labels that say that a text is not harmful, in lower case and without punctuation
HARMLESS_LABELS = frozenset(("ok", "safe", "neutral", "none", "normal", "clean", "benign", "legit", "legitimate", "o"))
HARMLESS_PREFIXES = ("not", "non", "no")


class ModerationPart(msgspec.Struct):
    type: str
    text: str | None = None
    image_url: dict[str, Any] | None = None


class ModerationsBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    input: Annotated[
        str | list[str | ModerationPart], doc("A text, a list of texts, or a list of text parts of one input.")
    ]


class Moderation(msgspec.Struct):
    flagged: bool  # whether a category applies whose name is not that of harmless texts, such as "safe" or "not toxic"
    categories: dict[str, bool]  # by label: whether its score is at least 0.5
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class Moderations(msgspec.Struct):
    id: str
    model: str
    results: list[Moderation]


@routes.add(
    ("/v1/moderations", "/moderations"),
    needs=CLASSIFICATION,
    example={"input": ["The river is old.", "The fish is red."]},
)
async def moderations(body: ModerationsBody, context: RequestContext) -> Moderations:
    """Classify texts, in the format of OpenAI's moderations: a category for each label of the model."""
    texts = parse_texts(body.input)
    scores = await classify(context, texts, make_truncation(None, context))
    results = [make_moderation(item) for item in scores]
    return Moderations(context.make_response_id("modr"), context.model, results)


def parse_texts(given: str | Sequence[str | ModerationPart]) -> list[str]:
    """Return the texts to classify: parts belong to one input."""
    if isinstance(given, str):
        return [given]
    check_not_empty(given, "input")
    texts = [item for item in given if isinstance(item, str)]
    if len(texts) == len(given):
        return texts
    parts: list[str] = []
    for index, item in enumerate(given):
        if isinstance(item, str) or item.type != "text" or item.text is None:
            raise BadRequest(f"input.{index}: expected a part with type text, like the others", param=f"input.{index}")
        parts.append(item.text)
    return ["\n".join(parts)]


def make_moderation(scores: Sequence[Prediction]) -> Moderation:
    categories = {item.label: item.score >= FLAG_THRESHOLD for item in scores}
    return Moderation(
        any(applies and not is_harmless(label) for label, applies in categories.items()),
        categories,
        {item.label: item.score for item in scores},
        {item.label: ["text"] for item in scores},
    )


def is_harmless(label: str) -> bool:
    words = re.findall(r"[a-z0-9]+", label.lower())
    is_negated = len(words) > 1 and words[0] in HARMLESS_PREFIXES
    return is_negated or "".join(words) in HARMLESS_LABELS


MODERATIONS = Dialect("moderations", routes, truncation=None)
