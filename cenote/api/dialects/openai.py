"""OpenAI embeddings API, with vLLM's extensions: conversations, binary encodings, truncation."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from cenote.api.dialects.dialect import Dialect, Need, Route
from cenote.api.embedding_types import EmbeddingTypeFields, apply_truncation
from cenote.api.encoding import EncodingFormat, QuantizedType
from cenote.api.late_chunking import TOKEN_CHUNKS_DOC, TokenChunks, late_chunking_reply, token_matrix_reply
from cenote.api.plain_route import Routes
from cenote.api.replies import AnswerList, Reply, TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import TASK_DOC, doc
from cenote.api.token_ids import apply_token_id_policy
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply
from cenote.errors import BadRequest
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import Task
from cenote.protocol.results import LateChunkingMetadata

routes = Routes(Route)

VECTOR_FORMAT = VectorFormat("embd", data_field=b"embedding", object=b"embedding")


EmbeddingFormat = EncodingFormat | QuantizedType | Literal["base64_int8", "base64_binary"]
# formats that are dtypes as well, with the encoding of the values: those of Perplexity, then those of Mixedbread
QUANTIZED_FORMATS: dict[str, tuple[QuantizedType, EncodingFormat]] = {
    "base64_int8": ("int8", "base64"),
    "base64_binary": ("ubinary", "base64"),
    "int8": ("int8", "float"),
    "uint8": ("uint8", "float"),
    "binary": ("binary", "float"),
    "ubinary": ("ubinary", "float"),
}


class EmbeddingsBody(EmbeddingTypeFields, kw_only=True):
    encoding_format: Annotated[
        EmbeddingFormat | None,
        doc("Default: float. bytes_only is bytes without the metadata header; int8 and others as output_dtype."),
    ] = None  # type: ignore[assignment]  # more formats than on other routes
    task: Annotated[str | None, TASK_DOC] = None
    late_chunking_params: Annotated[TokenChunks | None, TOKEN_CHUNKS_DOC] = None


class Embedding(msgspec.Struct, omit_defaults=True):
    index: int
    # base64 string if requested; a row for each token or chunk of a model with the task token_embed alone
    embedding: list[float | list[float]] | str
    object: str = msgspec.field(default_factory=lambda: "embedding")
    token_counts: TokenCounts | None = None
    start: int | None = None  # of the chunk in the text, in characters, if the request has a chunk_size
    end: int | None = None
    late_chunking: LateChunkingMetadata | None = None  # with late_chunking_params


def has_embeddings(model_info: ModelInfo) -> bool:
    """Whether the model has embeddings of texts, or else of tokens: a listwise reranker has those for its scores."""
    tasks = model_info.tasks
    return "embed" in tasks or ("token_embed" in tasks and "listwise" not in model_info.score_types)


@routes.add(
    ("/v1/embeddings", "/embeddings"),
    reply_type=AnswerList[Embedding],
    needs=Need("Embeddings", has_embeddings),
    can_be_binary=True,
    example={"input": ["Hello, my name is", "The capital of France is"]},
)
async def embeddings(body: EmbeddingsBody, context: RequestContext) -> Reply:
    # clients may send the pooling task "embed", which this route always runs
    """Compute one embedding for every text, list of token ids, or conversation."""
    embedding_task = None if body.task in ("embed", "token_embed") else body.task
    body.check_options()
    task = select_task(body, context.model_info)
    if body.encoding_format in QUANTIZED_FORMATS and task == "embed":
        split_format(body, body.encoding_format)
    dimensions, dtype = body.resolve_dimensions(), body.resolve_type()
    request = body.to_pool_request(task, context, dimensions=dimensions, embedding_task=embedding_task)
    if body.late_chunking_params is None:  # whose chunks have places in a text that the client has sent
        request = request.replace(inputs=await apply_token_id_policy(request.inputs, context))
    if body.truncate is not None or body.truncation is not None:
        modes = body.truncate, body.truncation
        request = request.replace(tokenization=apply_truncation(request.tokenization, modes, context))
    if task == "token_embed":
        if dtype is not None:
            raise BadRequest(
                f"matrices of token vectors are returned as float, not as {dtype}; leave out output_dtype",
                param="output_dtype",
            )
        return await token_matrix_reply(body, request, context, VECTOR_FORMAT, body.late_chunking_params)
    if body.late_chunking or body.chunk_size is not None:
        return await late_chunking_reply(body, request, context, VECTOR_FORMAT, dtype)
    check_metadata_limit(body, len(request.inputs))
    return await vector_reply(context, body, await context.pool(request), VECTOR_FORMAT, dtype)


def select_task(body: EmbeddingsBody, model_info: ModelInfo) -> Task:
    """Return token_embed for chunks of a number of tokens, and for models that have no other embeddings."""
    has_text_chunks = body.late_chunking or body.chunk_size is not None
    if body.late_chunking_params is not None:
        if has_text_chunks:
            raise BadRequest(
                "late_chunking_params sets chunks of a number of tokens, late_chunking and chunk_size set chunks of "
                "the text; set one of them",
                param="late_chunking_params",
            )
        return "token_embed"
    return "embed" if has_text_chunks or "embed" in model_info.tasks else "token_embed"


def split_format(body: EmbeddingsBody, encoding_format: str) -> None:
    """Set `output_dtype` and `encoding_format` to what a format of Perplexity or Mixedbread means."""
    dtype, encoding = QUANTIZED_FORMATS[encoding_format]
    if body.output_dtype not in (None, dtype):
        raise BadRequest(
            f"encoding_format={encoding_format} conflicts with output_dtype={body.output_dtype}; set one of them",
            param="encoding_format",
        )
    body.output_dtype, body.encoding_format = dtype, encoding


OPENAI = Dialect(
    "openai",
    routes,
    generation_paths=[
        *[f"{prefix}/{name}" for prefix in ("/v1", "") for name in ("chat/completions", "completions", "responses")],
        "/v1/messages",  # Anthropic's
    ],
)
