"""Native embedding route of the llama.cpp server, which llamafile has too, and its other paths of rerank."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from cenote.api.dialects.dialect import EMBEDDINGS, Dialect, Route
from cenote.api.dialects.rerank import RERANK
from cenote.api.dialects.text_requests import check_not_empty, embed_rows, make_embed_request
from cenote.api.encoding import Float32Array, encode_json
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest
from cenote.protocol.input_types import Input
from cenote.protocol.params import TokenizationParams

routes = Routes(Route)

NormKind = Annotated[int, Meta(ge=-1, le=100)]
EUCLIDEAN = 2
MAX_INT16_VALUE = 32_760  # largest absolute value of the norm 0


class LlamaEmbeddingBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    content: Annotated[str | list[int | str | list[int]], doc("A text, token ids, or a list of these.")]
    embd_normalize: Annotated[
        NormKind | None,
        doc("-1: not normalised, 0: largest absolute value 32760, 1: taxicab, 2: Euclidean (default), above: p-norm."),
    ] = None


class LlamaEmbedding(msgspec.Struct):
    embedding: list[float]


class IndexedLlamaEmbedding(msgspec.Struct):
    index: int
    embedding: list[list[float]]  # one row


@routes.add(
    "/embedding",
    reply_type=LlamaEmbedding | list[IndexedLlamaEmbedding],
    needs=EMBEDDINGS,
    example={"content": "Hello, my name is"},
)
async def embedding(body: LlamaEmbeddingBody, context: RequestContext) -> Any:
    """Compute embeddings in the format of the llama.cpp server."""
    inputs, is_list = parse_content(body.content)
    kind = EUCLIDEAN if body.embd_normalize is None else body.embd_normalize
    request = make_embed_request(inputs, TokenizationParams(), normalize=kind == EUCLIDEAN)
    rows = normalize_rows(await embed_rows(context, request), kind)
    if not is_list:
        return {"embedding": encode_json(rows[0])}
    return [{"index": index, "embedding": [encode_json(row)]} for index, row in enumerate(rows)]


def parse_content(content: str | list[int | str | list[int]]) -> tuple[list[Input], bool]:
    """Return the inputs, and whether they were given as a list."""
    if isinstance(content, str):
        return [content], False
    check_not_empty(content, "content")
    ids = [item for item in content if isinstance(item, int)]
    if len(ids) == len(content):
        return [ids], False
    inputs: list[Input] = [item for item in content if not isinstance(item, int)]
    if ids:
        raise BadRequest("content mixes token ids with texts or lists; expected one of these types", param="content")
    return inputs, True


def normalize_rows(rows: Float32Array, kind: int) -> Float32Array:
    """Divide rows by the norm that `embd_normalize` selects; the Euclidean one has been applied by the model."""
    if kind in (-1, EUCLIDEAN):
        return rows
    magnitudes = np.abs(rows.astype(np.float64))
    if kind == 0:
        norms = magnitudes.max(axis=1, keepdims=True) / MAX_INT16_VALUE
    else:
        norms = (magnitudes**kind).sum(axis=1, keepdims=True) ** (1 / kind)
    scaled: Float32Array = (rows / np.where(norms > 0, norms, 1)).astype(np.float32)
    return scaled


LLAMA_CPP = Dialect(
    "llama.cpp",
    [*routes, replace(RERANK.routes[0], paths=("/v1/reranking", "/reranking"))],
    generation_paths=("/completion", "/infill"),
    truncation=None,
)
