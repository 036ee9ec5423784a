"""Groups of request fields that several routes share, and what they mean for the engine."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from cenote.api.encoding import EmbedDType, EncodingFormat, Endianness
from cenote.api.request_context import Call
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import Chat, Input
from cenote.protocol.requests import PoolingParams, PoolRequest, RoleName, Task, Tokenization, role_called

# Every optional field is also allowed to be null: clients write null for what they leave alone.
Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Message = dict[str, Any]
Prompt = str | int | list[int | Message] | Message
Priority = Integer
TokenCount = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Dimensions = Annotated[int, Meta(ge=1, le=2**31 - 1)]

# programs take long to compile, and those that come with models are far shorter
MAX_TEMPLATE_CHARS = 100_000
UNTRUSTED_TEMPLATE = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)


def says(description: str) -> Meta:
    """What a field means where its name does not tell; the OpenAPI document and the page of routes show it."""
    return Meta(description=description)


ADAPTER = says("one of the model's own by its task, or one that was added; those may also be the model")
MEDIA_KWARGS = says("how images are read where not as the model's files say, such as max_pixels")
MEDIA_IO_KWARGS = says("accepted; images are decoded in one way")
PROMPT = says("put before every text; empty: not even the model's default prompt")
PROMPT_NAME = says("one of the model's own prompts, put before every text")
INPUT_TYPE = says("what the inputs are: query, document, ... or a name in the model's files; chooses its prompt for it")
TASK = says("what the vectors are for, such as retrieval.query: chooses the model's adapter and prompt for it")


class Common(msgspec.Struct, kw_only=True):
    """What every request may say."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[TokenCount | None, says("cut longer inputs; -1: to what the model reads")] = None
    truncation_side: Annotated[Literal["left", "right"] | None, says("the side that is cut off")] = None
    request_id: Annotated[str | None, says("accepted; the header X-Request-Id is what counts")] = None
    priority: Annotated[Priority | None, says("lower is earlier, where the server schedules by priority")] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MEDIA_KWARGS] = None
    cache_salt: Annotated[str | None, says("accepted; nothing is kept between requests")] = None
    return_token_counts: Annotated[bool | None, says("every answer says how much of its input was read")] = None
    adapter: Annotated[str | None, ADAPTER] = None

    def tokenization(self, *, add_special_tokens: bool = True) -> Tokenization:
        return Tokenization(
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            add_special_tokens=add_special_tokens,
        )


class Activated(Common, kw_only=True):
    """Whether vectors are normalised and logits squashed, by either of its names."""

    use_activation: Annotated[bool | None, says("normalise vectors, squash logits; as the model does if unset")] = None
    normalize: Annotated[bool | None, says("the older name of use_activation")] = None

    def params(self, *, dimensions: int | None = None) -> PoolingParams:
        return PoolingParams(use_activation=self.use_activation, normalize=self.normalize, dimensions=dimensions)


class Prompted(Activated, kw_only=True):
    """A text, texts, token ids, or conversations under either of two keys."""

    input: Annotated[str | list[Prompt] | None, says("a text, token ids, a conversation, or a list of one kind")] = None
    messages: Annotated[
        list[Message | list[Message]] | None,
        says("a conversation or several, with images too; not with input"),
    ] = None
    add_special_tokens: Annotated[bool | None, says("to texts by default; a conversation's template has them")] = None
    add_generation_prompt: Annotated[bool | None, says("open the answer's turn at the end")] = None
    continue_final_message: Annotated[bool | None, says("leave the last message open")] = None
    chat_template: Annotated[str | None, says("Jinja, where the server trusts templates of requests")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, says("variables for the chat template")] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, MEDIA_IO_KWARGS] = None

    @property
    def is_chat(self) -> bool:
        """Whether the inputs are conversations, to which no special tokens are added: their template has them."""
        if self.messages is not None:
            return True
        if not isinstance(self.input, list) or not self.input:
            return False
        first = self.input[0]
        return isinstance(first, dict) or (isinstance(first, list) and bool(first) and isinstance(first[0], dict))

    def inputs(self, call: Call) -> list[Input]:
        if self.messages is not None and self.input is not None:
            raise InvalidBody("input: give input or messages, not both", param="body.input")
        given: Any = self.messages if self.messages is not None else self.input
        name = "messages" if self.messages is not None else "input"
        if given is None:
            raise InvalidBody("input is required (or messages, for a conversation)", param="body.input")
        if isinstance(given, str):
            return [given]
        if not given:
            raise BadRequest("You must pass at least one prompt", param=name)
        one_kind(given, name)
        if isinstance(given[0], str):
            return given  # type: ignore[no-any-return]  # all of them are texts
        if isinstance(given[0], int):
            return [given]  # one prompt of token ids
        call.check_count(len(given), name)
        if isinstance(given[0], dict):
            return [chat(self, given, call)]
        return [self._one_of_several(each, f"{name}.{place}", call) for place, each in enumerate(given)]

    def _one_of_several(self, given: Any, name: str, call: Call) -> Input:
        if not given:
            raise BadRequest("an empty list is no prompt; give token ids or messages", param=name)
        one_kind(given, name)
        return chat(self, given, call, name) if isinstance(given[0], dict) else given

    def request(self, task: Task, call: Call, *, dimensions: int | None = None, **more: Any) -> PoolRequest:
        """What the engine is asked: this task on every input, and `more` of its fields."""
        return PoolRequest(
            task=task,
            inputs=self.inputs(call),
            params=self.params(dimensions=dimensions),
            tokenization=self.how(),
            adapter=self.adapter,
            media_kwargs=self.mm_processor_kwargs or {},
            priority=self.priority or 0,
            **more,
        )

    def how(self) -> Tokenization:
        given = self.add_special_tokens
        return self.tokenization(add_special_tokens=not self.is_chat if given is None else given)


class Encoded(Prompted, kw_only=True):
    """How numbers are written."""

    encoding_format: Annotated[EncodingFormat | None, says("float if unset; bytes_only has no header beside it")] = None
    embed_dtype: Annotated[EmbedDType | None, says("of base64 and bytes; float32 if unset")] = None
    endianness: Annotated[Endianness | None, says("of base64 and bytes; the server's own if unset")] = None


class Worded(Encoded, kw_only=True):
    """What is put before texts, by itself, by its name, or by what the texts are."""

    prompt: Annotated[str | None, PROMPT] = None
    prompt_name: Annotated[str | None, PROMPT_NAME] = None
    input_type: Annotated[str | None, INPUT_TYPE] = None
    role: Annotated[RoleName | None, says("query or document: the same as input_type")] = None

    def request(self, task: Task, call: Call, *, dimensions: int | None = None, **more: Any) -> PoolRequest:
        more |= {"prompt": self.prompt, "prompt_name": self.prompt_name, "input_type": self.input_type}
        return super().request(task, call, dimensions=dimensions, role=role_called(self.role), **more)


class ChatOptions(Protocol):
    """The fields that say how conversations become text."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


def chat(
    options: ChatOptions, messages: list[Message], call: Call, name: str = "messages", *, opens: bool = False
) -> Chat:
    """One conversation. `opens`: whether the answer's turn is opened where the request leaves that open."""
    kwargs = options.chat_template_kwargs or {}
    check_template(options.chat_template, kwargs, call)
    call.check_count(len(messages), name)
    if not messages:
        raise InvalidBody("messages: a conversation has at least one message", param="body.messages")
    return Chat(
        messages,
        template=options.chat_template,
        template_kwargs=kwargs,
        add_generation_prompt=opens if options.add_generation_prompt is None else options.add_generation_prompt,
        continue_final_message=bool(options.continue_final_message),
    )


def check_template(template: str | None, kwargs: dict[str, Any], call: Call) -> None:
    """A template that comes with the request is a program, and run only where that is allowed."""
    if (template is not None or "chat_template" in kwargs) and not call.settings.trust_request_chat_template:
        raise BadRequest(UNTRUSTED_TEMPLATE, param="chat_template")
    if template is not None and len(template) > MAX_TEMPLATE_CHARS:
        raise BadRequest(
            f"chat_template has {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are read",
            param="chat_template",
        )


def one_kind(items: list[Any], name: str) -> None:
    """A list holds one kind of thing; the first one decides which."""
    if len(set(map(type, items))) == 1:
        return
    kind = type(items[0])
    for place, item in enumerate(items):
        if type(item) is not kind:
            names = {str: "a text", int: "a token id", list: "a list", dict: "a message"}
            raise InvalidBody(
                f"{name}.{place}: expected {names[kind]} like the first, got {names[type(item)]}",
                param=f"body.{name}.{place}",
            )
