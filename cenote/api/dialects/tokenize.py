"""Tokenize and detokenize with the model's tokenizer."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.plain_route import Routes
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import (
    MEDIA_IO_KWARGS_DOC,
    MM_PROCESSOR_KWARGS_DOC,
    TIMEOUT_DOC,
    ChatMessage,
    Timeout,
    doc,
    make_conversation,
)
from cenote.errors import InvalidBody
from cenote.protocol.input_types import Input

routes = Routes(Route)

TokenId = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: Annotated[
        bool | None, doc("Add special tokens. Default: true for texts, false for conversations.")
    ] = None
    return_token_strs: Annotated[bool | None, doc("Return the token strings too.")] = None
    add_generation_prompt: Annotated[
        bool | None,
        doc("Append the start of an assistant message. Default: true, unless continue_final_message is set."),
    ] = None
    continue_final_message: Annotated[bool | None, doc("Do not end the last message.")] = None
    chat_template: Annotated[str | None, doc("Jinja chat template; requires --trust-request-chat-template.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("Variables of the chat template.")] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, MEDIA_IO_KWARGS_DOC] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MM_PROCESSOR_KWARGS_DOC] = None
    timeout: Annotated[Timeout | None, TIMEOUT_DOC] = None
    tools: Annotated[list[dict[str, Any]] | None, doc("Tool definitions, passed to the chat template.")] = None

    def make_input(self, context: RequestContext) -> Input:
        if self.prompt is not None and self.messages is not None:
            raise InvalidBody("prompt and messages are mutually exclusive; set one of them", param="body.prompt")
        if self.prompt is not None:
            return self.prompt
        if self.messages is None:
            raise InvalidBody(
                "prompt is required (or messages, for a conversation)", param="body.prompt", kind="missing"
            )
        if self.tools is not None:
            self.chat_template_kwargs = {**(self.chat_template_kwargs or {}), "tools": self.tools}
        return make_conversation(
            self, self.messages, context, default_generation_prompt=not self.continue_final_message
        )


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]
    timeout: Annotated[Timeout | None, TIMEOUT_DOC] = None


class Detokenized(msgspec.Struct):
    prompt: str


@routes.add("/tokenize", read_model_name=None, example={"prompt": "Hello, my name is", "return_token_strs": True})
async def tokenize(body: TokenizeBody, context: RequestContext) -> Tokenized:
    """Return the token ids of a text or conversation, also of a longer one than the model can read."""
    await context.select_model(body.model, param="model")
    add_special_tokens = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    tokenized = await context.tokenize(
        body.make_input(context),
        is_answer=True,
        add_special_tokens=add_special_tokens,
        return_token_strs=bool(body.return_token_strs),
        mm_processor_kwargs=body.mm_processor_kwargs,
    )
    ids = tokenized.token_ids
    return Tokenized(len(ids), context.model_info.max_model_len, ids, tokenized.token_strs)


@routes.add("/detokenize", read_model_name=None, example={"tokens": [10, 20, 30]})
async def detokenize(body: DetokenizeBody, context: RequestContext) -> Detokenized:
    """Return the text of token ids, including special tokens."""
    await context.select_model(body.model, param="model")
    return Detokenized(await context.detokenize(body.tokens))


TOKENIZE = Dialect("tokens", routes)
