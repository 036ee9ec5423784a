"""The request fields that scoring and reranking share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from cenote.api.request_fields import Activated, Integer, says
from cenote.protocol.input_types import Side
from cenote.protocol.requests import ScoreRequest, ScoreType

# a text, or an object with one: {"text": ...}, {"content": ...} with a text or a list of parts, which may be images
AnySide = str | dict[str, Any]
AnySides = str | dict[str, Any] | list[AnySide]


class Scoring(Activated, kw_only=True):
    """How two sides are compared."""

    # some clients write "true" for true and "10" for 10
    lenient: ClassVar[bool] = True

    score_type: Annotated[ScoreType | None, says("the model's own kind if unset")] = None
    max_tokens_per_query: Annotated[Integer | None, says("cut longer queries; 0 is no limit")] = None
    max_tokens_per_doc: Annotated[Integer | None, says("cut longer documents; 0 is no limit")] = None
    instruction: Annotated[str | None, says("what makes a document relevant, for models that are told")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, says("variables for the template that joins two texts")] = (
        None
    )

    def request(self, queries: Sequence[Side], documents: Sequence[Side]) -> ScoreRequest:
        return ScoreRequest(
            queries=queries,
            documents=documents,
            score_type=self.score_type,
            params=self.params(),
            tokenization=self.tokenization(),
            max_tokens_per_query=self.max_tokens_per_query or 0,
            max_tokens_per_doc=self.max_tokens_per_doc or 0,
            template_kwargs=self.chat_template_kwargs or {},
            instruction=self.instruction,
            adapter=self.adapter,
            media_kwargs=self.mm_processor_kwargs or {},
            priority=self.priority or 0,
        )
