"""Gemini API (embedContent, batchEmbedContents, countTokens) and the predict route of Vertex AI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from cenote.api.dialects.cohere_inputs import make_image_part, replace_inputs
from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route
from cenote.api.dialects.text_requests import check_not_empty, make_embed_request, make_truncation
from cenote.api.plain_route import Routes
from cenote.api.replies import ErrorBody
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import Dimensions, doc
from cenote.api.vector_response import encode_results
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.protocol.input_types import ContentParts
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult

routes = Routes(Route)

# in the order of their numbers, which clients of the gRPC schema send
TASK_TYPES = (
    "TASK_TYPE_UNSPECIFIED",
    "RETRIEVAL_QUERY",
    "RETRIEVAL_DOCUMENT",
    "SEMANTIC_SIMILARITY",
    "CLASSIFICATION",
    "CLUSTERING",
    "QUESTION_ANSWERING",
    "FACT_VERIFICATION",
    "CODE_RETRIEVAL_QUERY",
)
# task types whose texts are queries of a search
QUERY_TASK_TYPES = ("QUESTION_ANSWERING", "FACT_VERIFICATION", "CODE_RETRIEVAL_QUERY")
TASK_TYPE_DOC = doc("Use of the embedding, by name or number. Selects the model's prompt for it.")
VERSIONS = ("/v1beta", "/v1", "/v1beta1", "")
TEXT_EXAMPLE = {"parts": [{"text": "Hello, my name is"}]}
TITLE_DOC = doc("Title of a document; prepended to its text as a line of its own.")


class InlineData(msgspec.Struct, rename="camel"):
    mime_type: str
    data: str


class GeminiPart(msgspec.Struct, rename="camel"):
    text: str | None = None
    inline_data: InlineData | None = None


class GeminiContent(msgspec.Struct):
    parts: list[GeminiPart]
    role: str | None = None


class EmbedConfig(msgspec.Struct, kw_only=True, rename="camel"):
    task_type: Annotated[str | int | None, TASK_TYPE_DOC] = None
    title: Annotated[str | None, TITLE_DOC] = None
    output_dimensionality: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    auto_truncate: Annotated[bool | None, doc("Truncate texts to the model maximum. Default: true.")] = None


class EmbedContentBody(EmbedConfig, kw_only=True, rename="camel"):
    model: Annotated[str | None, doc("models/NAME; the path names the model.")] = None
    content: GeminiContent
    embed_content_config: Annotated[EmbedConfig | None, doc("The options, for clients that send them here.")] = None

    def resolve_config(self) -> EmbedConfig:
        """Return the options; those of `embedContentConfig` take precedence."""
        inner = self.embed_content_config or EmbedConfig()
        values = {name: getattr(inner, name) for name in EmbedConfig.__struct_fields__}
        return EmbedConfig(**{name: getattr(self, name) if value is None else value for name, value in values.items()})


class BatchEmbedContentsBody(msgspec.Struct):
    requests: list[EmbedContentBody]


class GenerateContentRequest(msgspec.Struct):
    contents: list[GeminiContent] | None = None


class CountTokensBody(msgspec.Struct, kw_only=True, rename="camel"):
    contents: list[GeminiContent] | None = None
    generate_content_request: Annotated[GenerateContentRequest | None, doc("Its contents are counted.")] = None


class Values(msgspec.Struct):
    values: list[float]


class UsageMetadata(msgspec.Struct, rename="camel"):
    prompt_token_count: int


class EmbeddedContent(msgspec.Struct, rename="camel"):
    embedding: Values
    usage_metadata: UsageMetadata


class EmbeddedContents(msgspec.Struct, rename="camel"):
    embeddings: list[Values]
    usage_metadata: UsageMetadata


class CountedTokens(msgspec.Struct, rename="camel"):
    total_tokens: int


class Instance(msgspec.Struct):
    content: str
    task_type: Annotated[str | None, TASK_TYPE_DOC] = None
    title: Annotated[str | None, TITLE_DOC] = None


class Parameters(msgspec.Struct, rename="camel"):
    auto_truncate: Annotated[bool | None, doc("Truncate texts to the model maximum. Default: true.")] = None
    output_dimensionality: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None


class PredictBody(msgspec.Struct):
    instances: list[Instance]
    parameters: Parameters | None = None


class Statistics(msgspec.Struct):
    truncated: bool
    token_count: int


class PredictedValues(msgspec.Struct):
    values: list[float]
    statistics: Statistics


class VertexPrediction(msgspec.Struct):
    embeddings: PredictedValues


class VertexPredicted(msgspec.Struct):
    predictions: list[VertexPrediction]
    metadata: dict[str, int] | UnsetType = UNSET


def read_model_name(body: EmbedContentBody) -> str | None:
    """Return the name without the prefix of the resource type."""
    return body.model.removeprefix("models/") if body.model else None


def list_paths(operation: str) -> list[str]:
    return [f"{version}/models/{{model}}:{operation}" for version in VERSIONS]


@routes.add(
    list_paths("embedContent"),
    reply_type=EmbeddedContent,
    read_model_name=read_model_name,
    needs=EMBEDDINGS,
    example={"content": TEXT_EXAMPLE, "taskType": "RETRIEVAL_QUERY"},
)
async def embed_content(body: EmbedContentBody, context: RequestContext) -> dict[str, Any]:
    """Compute the embedding of one content, in Gemini's format."""
    (result,) = await embed_all([body], context)
    (values,) = await encode_all([result])
    return {"embedding": values, "usageMetadata": UsageMetadata(context.num_tokens)}


@routes.add(
    list_paths("batchEmbedContents"),
    reply_type=EmbeddedContents,
    read_model_name=lambda body: read_model_name(body.requests[0]) if body.requests else None,
    needs=EMBEDDINGS,
    example={"requests": [{"content": TEXT_EXAMPLE}]},
)
async def batch_embed_contents(body: BatchEmbedContentsBody, context: RequestContext) -> dict[str, Any]:
    """Compute the embedding of every content, in Gemini's format."""
    check_not_empty(body.requests, "requests")
    context.check_num_items(len(body.requests), "requests")
    results = await embed_all(body.requests, context)
    return {"embeddings": await encode_all(results), "usageMetadata": UsageMetadata(context.num_tokens)}


@routes.add(list_paths("countTokens"), example={"contents": [TEXT_EXAMPLE]})
async def count_tokens(body: CountTokensBody, context: RequestContext) -> CountedTokens:
    """Count the tokens of contents, in Gemini's format."""
    contents = body.contents
    if contents is None and body.generate_content_request is not None:
        contents = body.generate_content_request.contents
    check_not_empty(contents or [], "contents")
    texts = [join_texts(content, f"contents[{index}]") for index, content in enumerate(contents or [])]
    return CountedTokens(sum(await context.count_tokens(texts, "contents")))


@routes.add(
    [f"{version}/publishers/google/models/{{model}}:predict" for version in VERSIONS],
    reply_type=VertexPredicted,
    needs=EMBEDDINGS,
    example={"instances": [{"content": "Hello, my name is", "task_type": "RETRIEVAL_QUERY"}]},
)
async def predict(body: PredictBody, context: RequestContext) -> dict[str, Any]:
    """Compute the embedding of every instance, in the format of Vertex AI."""
    check_not_empty(body.instances, "instances")
    context.check_num_items(len(body.instances), "instances")
    parameters = body.parameters or Parameters()
    bodies = [
        EmbedContentBody(
            content=GeminiContent([GeminiPart(instance.content)]),
            task_type=instance.task_type,
            title=instance.title,
            output_dimensionality=parameters.output_dimensionality,
            auto_truncate=parameters.auto_truncate,
        )
        for instance in body.instances
    ]
    results = await embed_all(bodies, context)
    pairs = zip(await encode_all(results), results, strict=True)
    return {"predictions": [make_prediction(values, result) for values, result in pairs]}


async def embed_all(bodies: Sequence[EmbedContentBody], context: RequestContext) -> list[PoolResult]:
    """Embed every content with its own options: those with equal options are one request to the engine."""
    groups: dict[EmbedKey, list[int]] = {}
    for index, body in enumerate(bodies):
        groups.setdefault(make_key(body.resolve_config()), []).append(index)
    requests = [make_request(key, [bodies[index] for index in indices], context) for key, indices in groups.items()]
    answers = await context.pool_all(requests)
    results: dict[int, PoolResult] = {}
    for indices, answer in zip(groups.values(), answers, strict=True):
        results |= zip(indices, answer, strict=True)
    return [results[index] for index in range(len(bodies))]


EmbedKey = tuple[str | None, int | None, bool]  # input type, size, whether long texts are truncated


def make_key(config: EmbedConfig) -> EmbedKey:
    return resolve_task_type(config.task_type), config.output_dimensionality, config.auto_truncate is not False


def make_request(key: EmbedKey, bodies: Sequence[EmbedContentBody], context: RequestContext) -> PoolRequest:
    input_type, dimensions, truncates = key
    has_images = any(part.inline_data is not None for body in bodies for part in body.content.parts)
    texts = [] if has_images else [make_text(body, index) for index, body in enumerate(bodies)]
    request = make_embed_request(
        texts, make_truncation(truncates, context), dimensions=dimensions, input_type=input_type
    )
    if not has_images:
        return request
    parts = [make_content_parts(body.content, index, context.model_info) for index, body in enumerate(bodies)]
    return replace_inputs(request, parts, context.model_info)


def make_text(body: EmbedContentBody, index: int) -> str:
    text = join_texts(body.content, f"requests[{index}].content")
    title = body.resolve_config().title
    return f"{title}\n{text}" if title else text


def join_texts(content: GeminiContent, name: str) -> str:
    """Return the text of a content: several parts are lines of one text."""
    check_not_empty(content.parts, f"{name}.parts")
    texts = [part.text for part in content.parts if part.text is not None]
    if len(texts) < len(content.parts):
        raise BadRequest(f"{name}.parts: expected text", param=f"{name}.parts")
    return "\n".join(texts)


def make_content_parts(content: GeminiContent, index: int, model_info: ModelInfo) -> ContentParts:
    name = f"requests[{index}].content.parts"
    if not model_info.supports_images:
        raise Unsupported(f"{model_info.name} does not support images; {name} has inlineData", param=name)
    parts = []
    for part in content.parts:
        if part.inline_data is not None:
            parts.append(make_image_part(f"data:{part.inline_data.mime_type};base64,{part.inline_data.data}"))
        else:
            parts.append({"type": "text", "text": part.text or ""})
    return ContentParts(parts, name)


def resolve_task_type(task_type: str | int | None) -> str | None:
    """Return the input type of the model's prompt; None without one."""
    if isinstance(task_type, int):
        if not 0 <= task_type < len(TASK_TYPES):
            raise BadRequest(
                f"taskType is {task_type}; expected a number from 0 to {len(TASK_TYPES) - 1}", param="taskType"
            )
        task_type = TASK_TYPES[task_type]
    if task_type is None or task_type == TASK_TYPES[0]:
        return None
    if task_type not in TASK_TYPES:
        raise BadRequest(f"unknown taskType {task_type!r}; expected one of: {', '.join(TASK_TYPES)}", param="taskType")
    return "query" if task_type in QUERY_TASK_TYPES else task_type


async def encode_all(results: Sequence[PoolResult]) -> list[dict[str, Any]]:
    return [{"values": values} for values in await encode_results(results)]


def make_prediction(values: dict[str, Any], result: PoolResult) -> dict[str, Any]:
    return {"embeddings": {**values, "statistics": Statistics(result.truncated, result.num_tokens)}}


class ErrorStatus(msgspec.Struct):
    code: int
    message: str
    status: str


class GeminiError(msgspec.Struct):
    error: ErrorStatus


# names of google.rpc.Code
STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def encode_error(body: ErrorBody, error: PoolingError | None) -> tuple[int, GeminiError]:
    return body.code, GeminiError(ErrorStatus(body.code, body.message, STATUS_NAMES.get(body.code, "UNKNOWN")))


GEMINI = Dialect(
    "gemini",
    routes,
    generation_paths=[
        *[*list_paths("generateContent"), *list_paths("streamGenerateContent")],
        *[f"{version}/publishers/google/models/{{model}}:generateContent" for version in VERSIONS],
    ],
    encode_error=encode_error,
    error_type=GeminiError,
    truncation="Leave out autoTruncate=false",
)
