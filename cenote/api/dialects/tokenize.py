"""From prompts to token ids and back, as the model's tokenizer reads them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import Reply, json_reply
from cenote.api.request_context import Call
from cenote.api.request_fields import MEDIA_IO_KWARGS, MEDIA_KWARGS, Message, chat, says
from cenote.errors import InvalidBody
from cenote.protocol.input_types import Input

TokenId = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class TokenizeBody(msgspec.Struct, kw_only=True):
    """A text, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: Annotated[bool | None, says("to texts by default; a conversation's template has them")] = None
    return_token_strs: Annotated[bool | None, says("also the tokens as the vocabulary writes them")] = None
    add_generation_prompt: Annotated[bool | None, says("true if unset, unless the last message is continued")] = None
    continue_final_message: Annotated[bool | None, says("leave the last message open")] = None
    chat_template: Annotated[str | None, says("Jinja, where the server trusts templates of requests")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, says("variables for the chat template")] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, MEDIA_IO_KWARGS] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MEDIA_KWARGS] = None
    tools: Annotated[list[dict[str, Any]] | None, says("for templates that list them")] = None

    def item(self, call: Call) -> Input:
        if self.prompt is not None and self.messages is not None:
            raise InvalidBody("prompt: give prompt or messages, not both", param="body.prompt")
        if self.prompt is not None:
            return self.prompt
        if self.messages is None:
            raise InvalidBody("prompt is required (or messages, for a conversation)", param="body.prompt")
        if self.tools is not None:
            self.chat_template_kwargs = {**(self.chat_template_kwargs or {}), "tools": self.tools}
        return chat(self, self.messages, call, opens=not self.continue_final_message)


class Tokenized(msgspec.Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


class Detokenized(msgspec.Struct):
    prompt: str


async def tokenize(body: TokenizeBody, call: Call) -> Reply:
    call.check_model(body.model, param="model")
    with_special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
    tokenized = await call.tokenize(
        body.item(call),
        add_special_tokens=with_special,
        strings=bool(body.return_token_strs),
        media_kwargs=body.mm_processor_kwargs,
    )
    ids = tokenized.token_ids
    return json_reply(Tokenized(len(ids), call.about.max_model_len, ids, tokenized.strings))


async def detokenize(body: DetokenizeBody, call: Call) -> Reply:
    call.check_model(body.model, param="model")
    return json_reply(Detokenized(await call.engine.detokenize(body.tokens)))


TOKENS = Dialect(
    "tokens",
    [
        Route(
            paths=("/tokenize",),
            body=TokenizeBody,
            handler=tokenize,
            summary="The token ids of a text or a conversation, whatever its length",
            reply=Tokenized,
            example={"prompt": "Hello, my name is", "return_token_strs": True},
        ),
        Route(
            paths=("/detokenize",),
            body=DetokenizeBody,
            handler=detokenize,
            summary="The text of token ids, special tokens included",
            reply=Detokenized,
            example={"tokens": [10, 20, 30]},
        ),
    ],
)
