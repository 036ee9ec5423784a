"""OpenAI embeddings API, with vLLM's extensions: conversations, binary encodings, truncation."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import AnswerList, Reply, TokenCounts
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import TASK_DOC, Dimensions, PromptTextFields, doc
from cenote.api.vector_response import VectorFormat, check_metadata_limit, vector_reply

VECTOR_FORMAT = VectorFormat("embd", data_field=b"embedding", object=b"embedding")


class EmbeddingsBody(PromptTextFields, kw_only=True):
    dimensions: Annotated[Dimensions | None, doc("Embedding size, for Matryoshka models.")] = None
    task: Annotated[str | None, TASK_DOC] = None


class Embedding(msgspec.Struct, omit_defaults=True):
    index: int
    embedding: list[float] | str  # base64 string if requested
    object: str = msgspec.field(default_factory=lambda: "embedding")
    token_counts: TokenCounts | None = None


async def embeddings(body: EmbeddingsBody, context: RequestContext) -> Reply:
    await context.select_model(body.model)
    # clients may send the pooling task "embed", which this route always runs
    embedding_task = None if body.task == "embed" else body.task
    request = body.to_pool_request("embed", context, dimensions=body.dimensions, embedding_task=embedding_task)
    check_metadata_limit(body, len(request.inputs))
    return await vector_reply(context, body, await context.pool(request), VECTOR_FORMAT)


OPENAI = Dialect(
    "openai",
    [
        Route(
            paths=("/v1/embeddings", "/embeddings"),
            body_type=EmbeddingsBody,
            handler=embeddings,
            summary="Compute one embedding for every text, list of token ids, or conversation",
            reply_type=AnswerList[Embedding],
            api_name="Embeddings",
            is_supported=lambda model_info: "embed" in model_info.tasks,
            can_be_binary=True,
            example={"input": ["Hello, my name is", "The capital of France is"]},
        )
    ],
)
