"""Fields, replies, inputs and errors of Text Embeddings Inference, shared by its routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from cenote.api.replies import ErrorBody
from cenote.api.request_body import NULL_JSON
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import PROMPT_NAME_DOC, Dimensions, doc
from cenote.errors import BadRequest, NotOffered, PoolingError, RouteNotFound
from cenote.protocol.input_types import Input
from cenote.protocol.params import TokenizationParams

ERROR_TYPES = {429: "Overloaded", 503: "Unhealthy"}
Direction = Literal["Left", "Right", "left", "right"]


class TeiError(msgspec.Struct):
    error: str
    error_type: Literal["Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"]


class Prediction(msgspec.Struct):
    score: float
    label: str


class Rank(msgspec.Struct, omit_defaults=True):
    index: int
    score: float
    text: str | None = None


class SparseValue(msgspec.Struct):
    index: int
    value: float


class Info(msgspec.Struct):
    model_id: str
    model_sha: None
    model_dtype: str
    served_model_name: str
    model_type: dict[str, dict[str, Any]]
    max_input_length: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


class VertexBody(msgspec.Struct):
    instances: list[msgspec.Raw]


class Predictions(msgspec.Struct):
    predictions: list[Any]


class InstanceKeys(msgspec.Struct):
    """The keys that tell the requests of `POST /` apart."""

    inputs: msgspec.Raw = NULL_JSON
    texts: msgspec.Raw = NULL_JSON
    model: str | None = None


class EmptyInput(BadRequest):
    """An input has no text."""


def encode_tei_error(body: ErrorBody, error: PoolingError | None) -> tuple[int, Any]:
    """Return 424 for a task that the model does not support, 422 for an invalid request, and other statuses as is."""
    if isinstance(error, NotOffered | RouteNotFound):
        return 424, TeiError(body.message, "Backend")
    if isinstance(error, EmptyInput):
        return 400, TeiError(body.message, "Empty")
    if body.code == 400:
        return 422, TeiError(body.message, "Validation")
    default = "Backend" if body.code >= 500 else "Validation"
    return body.code, TeiError(body.message, ERROR_TYPES.get(body.code, default))  # type: ignore[arg-type]


class TruncationFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    truncate: Annotated[bool | None, doc("Truncate texts that are too long. Default: true.")] = None
    truncation_direction: Annotated[Direction | None, doc("Side that is truncated. Default: right.")] = None

    def make_tokenization_params(self, context: RequestContext) -> TokenizationParams:
        side: Any = (self.truncation_direction or "right").lower()
        limit: int | None = -1
        if self.truncate is False:
            context.auto_truncates = False
            limit = None
        return TokenizationParams(truncate_prompt_tokens=limit, truncation_side=side, keep_special_tokens=True)


class TeiEmbedFields(TruncationFields, kw_only=True):
    """Options of one vector per input."""

    prompt_name: Annotated[str | None, PROMPT_NAME_DOC] = None
    normalize: Annotated[bool | None, doc("Normalise the vectors. Default: true.")] = None
    dimensions: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None


class TeiEmbedBody(TeiEmbedFields, kw_only=True):
    inputs: Annotated[str | list[str | int | list[int]], doc("A text, the token ids of a text, or a list of these.")]


class FeatureExtractionBody(TeiEmbedBody, kw_only=True):
    parameters: Annotated[TeiEmbedFields | None, doc("The options, where Hugging Face clients put them.")] = None

    def use_parameters(self) -> None:
        """Set the options that are only in `parameters`."""
        for name in ("truncate", "truncation_direction", "prompt_name", "normalize", "dimensions"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(self.parameters, name, None))


class TeiPredictBody(TruncationFields, kw_only=True):
    inputs: Annotated[
        str | list[str | list[str]], doc("A text, a list of two texts that form a pair, or a list of lists of these.")
    ]
    raw_scores: Annotated[bool | None, doc("Return logits. Default: false.")] = None


class TeiRerankBody(TruncationFields, kw_only=True):
    query: str
    texts: list[str]
    raw_scores: Annotated[bool | None, doc("Return logits. Default: false, scores from 0 to 1.")] = None
    return_text: Annotated[bool | None, doc("Return the texts. Default: false.")] = None
    top_n: Annotated[int | None, doc("Return only the best texts.")] = None


class SimilarityInputs(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class TeiSimilarityBody(msgspec.Struct, kw_only=True):
    inputs: SimilarityInputs
    parameters: TeiEmbedFields | None = None
    model: str | None = None


def make_inputs(inputs: str | list[Any], context: RequestContext) -> list[Input]:
    """Return the inputs of an embedding request; a flat list of integers is one text."""
    items: list[Any] = [inputs] if isinstance(inputs, str) or (inputs and isinstance(inputs[0], int)) else inputs
    context.check_num_items(len(items), "inputs")
    check_not_empty(items, "inputs")
    if any(isinstance(item, int) for item in items):
        raise BadRequest("inputs mixes token ids with texts; expected texts or lists of token ids", param="inputs")
    return items


def check_not_empty(items: list[Any], name: str) -> None:
    if not items or not all(items):
        raise EmptyInput(f"`{name}` cannot be empty", param=name)
