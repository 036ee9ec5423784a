"""Request fields of scoring and reranking, and their conversion to a ScoreRequest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from cenote.api.request_fields import ActivationFields, Int64, doc
from cenote.protocol.input_types import ScoreInput
from cenote.protocol.params import ScoreType
from cenote.protocol.requests import ScoreRequest

# a string, or an object: {"text": ...}, or {"content": ...} with a string or a list of text and image parts
ScoreInputBody = str | dict[str, Any]
ScoreInputsBody = str | dict[str, Any] | list[ScoreInputBody]


class ScoringFields(ActivationFields, kw_only=True):
    """Options of scoring a query against a document."""

    # some clients send "true" for true and "10" for 10
    lenient: ClassVar[bool] = True

    score_type: Annotated[ScoreType | None, doc("Default: the score type of the model.")] = None
    max_tokens_per_query: Annotated[Int64 | None, doc("Truncate queries to this many tokens; 0 for no limit.")] = None
    max_tokens_per_doc: Annotated[Int64 | None, doc("Truncate documents to this many tokens; 0 for no limit.")] = None
    instruction: Annotated[
        str | None, doc("Instruction for instruction-aware rerankers: what makes a document relevant.")
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("Variables of the score template.")] = None

    def to_score_request(self, queries: Sequence[ScoreInput], documents: Sequence[ScoreInput]) -> ScoreRequest:
        params = self.make_pooling_params()
        return ScoreRequest(
            queries=queries,
            documents=documents,
            score_type=self.score_type,
            # rerank clients send `normalize` whatever the kind of the model
            params=None if params is None else replace(params, normalize=None),
            tokenization=self.make_tokenization_params(),
            max_tokens_per_query=self.max_tokens_per_query or 0,
            max_tokens_per_doc=self.max_tokens_per_doc or 0,
            template_kwargs=self.chat_template_kwargs or {},
            instruction=self.instruction,
            adapter=self.adapter,
            mm_processor_kwargs=self.mm_processor_kwargs or {},
            scheduling=self.make_scheduling_params(),
        )
