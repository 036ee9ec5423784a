"""OpenAI's embeddings route, with the reference's additions: conversations, binary numbers, truncation."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import AnswerList, Reply, TokenCounts
from cenote.api.request_context import Call
from cenote.api.request_fields import TASK, Dimensions, Worded, says
from cenote.api.vector_response import Written, check_form, vector_reply

WRITTEN = Written("embd", field=b"embedding", object=b"embedding")


class EmbeddingsBody(Worded, kw_only=True):
    dimensions: Annotated[Dimensions | None, says("the size of the vectors, for Matryoshka models")] = None
    task: Annotated[str | None, TASK] = None


class Embedding(msgspec.Struct, omit_defaults=True):
    index: int
    embedding: list[float] | str  # base64 where asked for
    object: str = msgspec.field(default_factory=lambda: "embedding")
    token_counts: TokenCounts | None = None


async def embeddings(body: EmbeddingsBody, call: Call) -> Reply:
    call.check_model(body.model)
    purpose = None if body.task == "embed" else body.task  # what this route does in any case, as others name it
    request = body.request("embed", call, dimensions=body.dimensions, purpose=purpose)
    check_form(body, len(request.inputs))
    return await vector_reply(call, body, await call.pool(request), WRITTEN)


OPENAI = Dialect(
    "openai",
    [
        Route(
            paths=("/v1/embeddings", "/embeddings"),
            body=EmbeddingsBody,
            handler=embeddings,
            summary="One vector for every text, list of token ids, or conversation",
            reply=AnswerList[Embedding],
            api="Embeddings",
            offered=lambda about: "embed" in about.tasks,
            binary=True,
            example={"input": ["Hello, my name is", "The capital of France is"]},
        )
    ],
)
