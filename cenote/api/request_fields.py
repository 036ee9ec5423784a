"""Groups of request fields that several routes share, and what they mean for the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec
from msgspec import Meta

from cenote.api.encoding import EmbedDType, EncodingFormat, Endianness
from cenote.api.request_context import RequestContext
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import Conversation, Input, ScoreInput
from cenote.protocol.names import parse_role
from cenote.protocol.params import PoolingParams, RoleName, ScoreType, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest, ScoreRequest

# Every optional field is also allowed to be null: clients write null for what they leave alone.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ChatMessage = dict[str, Any]
PromptInput = str | int | list[int | ChatMessage] | ChatMessage
Priority = Int64
TokenCount = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Dimensions = Annotated[int, Meta(ge=1, le=2**31 - 1)]

# programs take long to compile, and those that come with models are far shorter
MAX_TEMPLATE_CHARS = 100_000
UNTRUSTED_TEMPLATE_MESSAGE = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)


def doc(description: str) -> Meta:
    """What a field means where its name does not tell; the OpenAPI document and the page of routes show it."""
    return Meta(description=description)


ADAPTER_DOC = doc("one of the model's own by its task, or one that was added; those may also be the model")
MM_PROCESSOR_KWARGS_DOC = doc("how images are read where not as the model's files say, such as max_pixels")
MEDIA_IO_KWARGS_DOC = doc("accepted; images are decoded in one way")
PROMPT_DOC = doc("put before every text; empty: not even the model's default prompt")
PROMPT_NAME_DOC = doc("one of the model's own prompts, put before every text")
INPUT_TYPE_DOC = doc(
    "what the inputs are: query, document, ... or a name in the model's files; chooses its prompt for it"
)
TASK_DOC = doc("what the vectors are for, such as retrieval.query: chooses the model's adapter and prompt for it")


class CommonFields(msgspec.Struct, kw_only=True):
    """What every request may say."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[TokenCount | None, doc("cut longer inputs; -1: to what the model reads")] = None
    truncation_side: Annotated[Literal["left", "right"] | None, doc("the side that is cut off")] = None
    request_id: Annotated[str | None, doc("accepted; the header X-Request-Id is what counts")] = None
    priority: Annotated[Priority | None, doc("lower is earlier, where the server schedules by priority")] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MM_PROCESSOR_KWARGS_DOC] = None
    cache_salt: Annotated[str | None, doc("accepted; nothing is kept between requests")] = None
    return_token_counts: Annotated[bool | None, doc("every answer says how much of its input was read")] = None
    adapter: Annotated[str | None, ADAPTER_DOC] = None

    def make_tokenization_params(self, *, add_special_tokens: bool = True) -> TokenizationParams:
        return TokenizationParams(
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            add_special_tokens=add_special_tokens,
        )


class ActivationFields(CommonFields, kw_only=True):
    """Whether vectors are normalised and logits squashed, by either of its names."""

    use_activation: Annotated[bool | None, doc("normalise vectors, squash logits; as the model does if unset")] = None
    normalize: Annotated[bool | None, doc("the older name of use_activation")] = None

    def make_pooling_params(self, *, dimensions: int | None = None) -> PoolingParams:
        return PoolingParams(use_activation=self.use_activation, normalize=self.normalize, dimensions=dimensions)


class PromptFields(ActivationFields, kw_only=True):
    """A text, texts, token ids, or conversations under either of two keys."""

    input: Annotated[
        str | list[PromptInput] | None, doc("a text, token ids, a conversation, or a list of one kind")
    ] = None
    messages: Annotated[
        list[ChatMessage | list[ChatMessage]] | None,
        doc("a conversation or several, with images too; not with input"),
    ] = None
    add_special_tokens: Annotated[bool | None, doc("to texts by default; a conversation's template has them")] = None
    add_generation_prompt: Annotated[bool | None, doc("open the answer's turn at the end")] = None
    continue_final_message: Annotated[bool | None, doc("leave the last message open")] = None
    chat_template: Annotated[str | None, doc("Jinja, where the server trusts templates of requests")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("variables for the chat template")] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, MEDIA_IO_KWARGS_DOC] = None

    @property
    def is_conversation(self) -> bool:
        """Whether the inputs are conversations, to which no special tokens are added: their template has them."""
        if self.messages is not None:
            return True
        if not isinstance(self.input, list) or not self.input:
            return False
        first = self.input[0]
        return isinstance(first, dict) or (isinstance(first, list) and bool(first) and isinstance(first[0], dict))

    def make_inputs(self, context: RequestContext) -> list[Input]:
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
        check_same_type(given, name)
        if isinstance(given[0], str):
            return given  # type: ignore[no-any-return]  # all of them are texts
        if isinstance(given[0], int):
            return [given]  # one prompt of token ids
        context.check_num_items(len(given), name)
        if isinstance(given[0], dict):
            return [make_conversation(self, given, context)]
        return [self._make_input(each, f"{name}.{place}", context) for place, each in enumerate(given)]

    def _make_input(self, item: Any, name: str, context: RequestContext) -> Input:
        if not item:
            raise BadRequest("an empty list is no prompt; give token ids or messages", param=name)
        check_same_type(item, name)
        return make_conversation(self, item, context, name) if isinstance(item[0], dict) else item

    def to_pool_request(
        self, task: Task, context: RequestContext, *, dimensions: int | None = None, **extra_fields: Any
    ) -> PoolRequest:
        """What the engine is asked: this task on every input, and `more` of its fields."""
        return PoolRequest(
            task=task,
            inputs=self.make_inputs(context),
            params=self.make_pooling_params(dimensions=dimensions),
            tokenization=self.resolve_tokenization_params(),
            adapter=self.adapter,
            mm_processor_kwargs=self.mm_processor_kwargs or {},
            priority=self.priority or 0,
            **extra_fields,
        )

    def resolve_tokenization_params(self) -> TokenizationParams:
        given = self.add_special_tokens
        return self.make_tokenization_params(add_special_tokens=not self.is_conversation if given is None else given)


class EncodingFields(PromptFields, kw_only=True):
    """How numbers are written."""

    encoding_format: Annotated[EncodingFormat | None, doc("float if unset; bytes_only has no header beside it")] = None
    embed_dtype: Annotated[EmbedDType | None, doc("of base64 and bytes; float32 if unset")] = None
    endianness: Annotated[Endianness | None, doc("of base64 and bytes; the server's own if unset")] = None


class PromptTextFields(EncodingFields, kw_only=True):
    """What is put before texts, by itself, by its name, or by what the texts are."""

    prompt: Annotated[str | None, PROMPT_DOC] = None
    prompt_name: Annotated[str | None, PROMPT_NAME_DOC] = None
    input_type: Annotated[str | None, INPUT_TYPE_DOC] = None
    role: Annotated[RoleName | None, doc("query or document: the same as input_type")] = None

    def to_pool_request(
        self, task: Task, context: RequestContext, *, dimensions: int | None = None, **extra_fields: Any
    ) -> PoolRequest:
        extra_fields |= {"prompt": self.prompt, "prompt_name": self.prompt_name, "input_type": self.input_type}
        return super().to_pool_request(task, context, dimensions=dimensions, role=parse_role(self.role), **extra_fields)


class ChatOptions(Protocol):
    """The fields that say how conversations become text."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None


def make_conversation(
    options: ChatOptions,
    messages: list[ChatMessage],
    context: RequestContext,
    name: str = "messages",
    *,
    default_generation_prompt: bool = False,
) -> Conversation:
    """One conversation. `opens`: whether the answer's turn is opened where the request leaves that open."""
    kwargs = options.chat_template_kwargs or {}
    check_chat_template(options.chat_template, kwargs, context)
    context.check_num_items(len(messages), name)
    if not messages:
        raise InvalidBody("messages: a conversation has at least one message", param="body.messages")
    return Conversation(
        messages,
        template=options.chat_template,
        template_kwargs=kwargs,
        add_generation_prompt=default_generation_prompt
        if options.add_generation_prompt is None
        else options.add_generation_prompt,
        continue_final_message=bool(options.continue_final_message),
    )


def check_chat_template(template: str | None, kwargs: dict[str, Any], context: RequestContext) -> None:
    """A template that comes with the request is a program, and run only where that is allowed."""
    if (template is not None or "chat_template" in kwargs) and not context.settings.trust_request_chat_template:
        raise BadRequest(UNTRUSTED_TEMPLATE_MESSAGE, param="chat_template")
    if template is not None and len(template) > MAX_TEMPLATE_CHARS:
        raise BadRequest(
            f"chat_template has {len(template)} characters, at most {MAX_TEMPLATE_CHARS} are read",
            param="chat_template",
        )


def check_same_type(items: list[Any], name: str) -> None:
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


# a text, or an object with one: {"text": ...}, {"content": ...} with a text or a list of parts, which may be images
ScoreInputBody = str | dict[str, Any]


ScoreInputsBody = str | dict[str, Any] | list[ScoreInputBody]


class ScoringFields(ActivationFields, kw_only=True):
    """How two sides are compared."""

    # some clients write "true" for true and "10" for 10
    lenient: ClassVar[bool] = True

    score_type: Annotated[ScoreType | None, doc("the model's own kind if unset")] = None
    max_tokens_per_query: Annotated[Int64 | None, doc("cut longer queries; 0 is no limit")] = None
    max_tokens_per_doc: Annotated[Int64 | None, doc("cut longer documents; 0 is no limit")] = None
    instruction: Annotated[str | None, doc("what makes a document relevant, for models that are told")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("variables for the template that joins two texts")] = (
        None
    )

    def to_score_request(self, queries: Sequence[ScoreInput], documents: Sequence[ScoreInput]) -> ScoreRequest:
        return ScoreRequest(
            queries=queries,
            documents=documents,
            score_type=self.score_type,
            params=self.make_pooling_params(),
            tokenization=self.make_tokenization_params(),
            max_tokens_per_query=self.max_tokens_per_query or 0,
            max_tokens_per_doc=self.max_tokens_per_doc or 0,
            template_kwargs=self.chat_template_kwargs or {},
            instruction=self.instruction,
            adapter=self.adapter,
            mm_processor_kwargs=self.mm_processor_kwargs or {},
            priority=self.priority or 0,
        )
