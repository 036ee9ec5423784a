"""Voyage AI API: multimodal embeddings. Embeddings of texts are on the OpenAI route, rerank is /v1/rerank."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from cenote.api.dialects.cohere_inputs import count_images, make_image_part, replace_inputs
from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route
from cenote.api.dialects.openai import Embedding
from cenote.api.dialects.text_requests import (
    check_not_empty,
    make_embed_request,
    make_truncation,
)
from cenote.api.dialects.voyage_contextualized import VoyageFields, contextualized_routes
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.api.vector_response import encode_results
from cenote.errors import BadRequest, Unsupported
from cenote.protocol.input_types import ContentParts
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import PoolRequest

routes = Routes(Route)


class ContentPart(msgspec.Struct, kw_only=True):
    type: Literal["text", "image_url", "image_base64"]
    text: str | None = None
    image_url: str | None = None
    image_base64: Annotated[str | None, doc("A data URI.")] = None


class MultimodalInput(msgspec.Struct):
    """Parts that give one embedding."""

    content: list[ContentPart]


class MultimodalBody(VoyageFields, kw_only=True):
    inputs: list[MultimodalInput]
    truncation: Annotated[bool | None, doc("Truncate texts to the model maximum. Default: true.")] = None
    output_encoding: Annotated[Literal["base64"] | None, doc("Former name of encoding_format.")] = None


class MultimodalUsage(msgspec.Struct):
    text_tokens: int  # 0 if there are images: their tokens are not counted apart
    image_pixels: int  # not counted: 0
    video_pixels: int
    total_tokens: int


class MultimodalAnswer(msgspec.Struct):
    object: str
    data: list[Embedding]
    model: str
    usage: MultimodalUsage


@routes.add(
    "/v1/multimodalembeddings",
    reply_type=MultimodalAnswer,
    needs=EMBEDDINGS,
    example={"inputs": [{"content": [{"type": "text", "text": "Hello, my name is"}]}]},
)
async def multimodal_embeddings(body: MultimodalBody, context: RequestContext) -> dict[str, Any]:
    """Compute one embedding for each input of text and image parts, in Voyage's format."""
    check_not_empty(body.inputs, "inputs")
    context.check_num_items(len(body.inputs), "inputs")
    parts = [make_content_parts(item, index, context.model_info) for index, item in enumerate(body.inputs)]
    results = await context.pool(replace_inputs(make_request(body, context), parts, context.model_info))
    is_base64 = "base64" in (body.encoding_format, body.output_encoding)
    texts = await encode_results(results, body.output_dtype, is_base64=is_base64)
    data = [{"index": index, "embedding": text, "object": "embedding"} for index, text in enumerate(texts)]
    text_tokens = 0 if count_images(parts) else context.num_tokens
    usage = MultimodalUsage(text_tokens, 0, 0, context.num_tokens)
    return {"object": "list", "data": data, "model": context.model, "usage": usage}


def make_request(body: MultimodalBody, context: RequestContext) -> PoolRequest:
    """Return the request without its inputs."""
    return make_embed_request(
        [],
        make_truncation(body.truncation is not False, context),
        dimensions=body.output_dimension,
        input_type=body.input_type,
    )


def make_content_parts(item: MultimodalInput, index: int, model_info: ModelInfo) -> ContentParts:
    name = f"inputs[{index}].content"
    check_not_empty(item.content, name)
    parts = []
    for position, part in enumerate(item.content):
        value = getattr(part, part.type)
        if value is None:
            raise BadRequest(f"{name}[{position}] has no {part.type}", param=f"{name}[{position}]")
        if part.type == "text":
            parts.append({"type": "text", "text": value})
            continue
        if not model_info.supports_images:
            raise Unsupported(f"{model_info.name} does not support images; {name}[{position}] is an image", param=name)
        parts.append(make_image_part(value))
    return ContentParts(parts, name)


VOYAGE = Dialect(
    "voyage",
    [*routes, *contextualized_routes],
    truncation="Leave out truncation=false",
)
