"""Request fields shared by several routes, and their conversion to engine requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

from cenote.api.encoding import EncodingFormat
from cenote.api.request_context import RequestContext
from cenote.errors import BadRequest, InvalidBody
from cenote.protocol.input_types import Conversation, Input
from cenote.protocol.names import parse_role
from cenote.protocol.params import PoolingParams, RoleName, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.scheduling import DEFAULT_SCHEDULING, SchedulingParams, hash_cache_salt
from cenote.protocol.score_inputs import parse_score_input
from cenote.utils.binary_formats import EmbedDType, Endianness

# Every optional field may also be null: clients send null for unset fields.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
ChatMessage = dict[str, Any]
PromptInput = str | int | list[int | ChatMessage] | ChatMessage
Priority = Int64
TokenCount = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Timeout = Annotated[float, Meta(gt=0)]
Dimensions = Annotated[int, Meta(ge=1, le=2**31 - 1)]

# of nearly all requests, which share it
DEFAULT_TOKENIZATION = TokenizationParams()

MAX_CACHE_SALT_CHARS = 128

# long templates are slow to compile; those of models are far shorter
MAX_TEMPLATE_CHARS = 100_000
UNTRUSTED_TEMPLATE_MESSAGE = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)


def doc(description: str) -> Meta:
    """Return the description of a field for the OpenAPI document and the documentation page."""
    return Meta(description=description)


ADAPTER_DOC = doc(
    "Adapter name: a built-in adapter by its task, or a loaded LoRA adapter, which can also be given as model."
)
MM_PROCESSOR_KWARGS_DOC = doc("Overrides of the model's image processor settings, such as max_pixels.")
PADDING_DOC = doc(
    "max_length: compute inputs with padding tokens up to the maximum length, for models that were trained so; "
    "do_not_pad: no padding, not even for such a model."
)
REQUEST_ID_DOC = doc(
    "Id of the request in the response, its headers and the log, unless the header X-Request-Id sets it. Another id is "
    "made if it is longer than 128 characters or has others than letters, digits and _.:/@+=-."
)
TIMEOUT_DOC = doc(
    "Seconds after which the request is cancelled with status 504. The header X-Request-Timeout-Ms also works."
)
MEDIA_IO_KWARGS_DOC = doc("Accepted for compatibility, ignored.")
PROMPT_DOC = doc("Text prepended to every input. An empty string disables the model's default prompt.")
PROMPT_NAME_DOC = doc("Name of one of the model's prompts, prepended to every input.")
INPUT_TYPE_DOC = doc(
    "Type of the inputs: query, document or another name in the model's files. Selects the prompt for it."
)
TASK_DOC = doc("Embedding task, such as retrieval.query. Selects the model's adapter and prompt for it.")


def _check_cache_salt(salt: str | None) -> None:
    """Raise for a salt that vLLM refuses, because some of its cache servers use it as a part of a key."""
    if salt is not None and (len(salt) > MAX_CACHE_SALT_CHARS or any(char in "@/\\\0" for char in salt)):
        raise BadRequest(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', '/', '\\\\', or NUL.",
            param="cache_salt",
        )


class CommonFields(msgspec.Struct, kw_only=True):
    """Fields of every request."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[
        TokenCount | None, doc("Truncate inputs to this many tokens; -1 for the model maximum.")
    ] = None
    truncation_side: Annotated[Literal["left", "right"] | None, doc("Side that is truncated.")] = None
    padding: Annotated[Literal["max_length", "do_not_pad"] | None, PADDING_DOC] = None
    request_id: Annotated[str | None, REQUEST_ID_DOC] = None
    priority: Annotated[Priority | None, doc("Lower values run earlier, if the server schedules by priority.")] = None
    timeout: Annotated[Timeout | None, TIMEOUT_DOC] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, MM_PROCESSOR_KWARGS_DOC] = None
    cache_salt: Annotated[
        str | None,
        doc("Results are shared only with requests of the same salt, in the cache and between equal inputs."),
    ] = None
    return_token_counts: Annotated[bool | None, doc("Return the token counts of every input.")] = None
    adapter: Annotated[str | None, ADAPTER_DOC] = None

    def make_scheduling_params(self) -> SchedulingParams:
        if not self.priority and self.cache_salt is None:
            return DEFAULT_SCHEDULING
        _check_cache_salt(self.cache_salt)
        return SchedulingParams(self.priority or 0, cache_salt=hash_cache_salt(self.cache_salt))

    def make_tokenization_params(self, *, add_special_tokens: bool = True) -> TokenizationParams:
        given = (self.truncate_prompt_tokens, self.truncation_side, self.padding)
        if add_special_tokens and given == (None, None, None):
            return DEFAULT_TOKENIZATION
        return TokenizationParams(
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            truncation_side=self.truncation_side,
            add_special_tokens=add_special_tokens,
            pad_prompt_tokens=None if self.padding is None else -1 if self.padding == "max_length" else 0,
        )


class ActivationFields(CommonFields, kw_only=True):
    """Whether to normalise embeddings and apply sigmoid or softmax to logits, under either of two names."""

    use_activation: Annotated[
        bool | None,
        doc("Normalise embeddings, apply sigmoid or softmax to logits. Default: as the model is configured."),
    ] = None
    normalize: Annotated[bool | None, doc("Former name of use_activation; not for classification.")] = None
    softmax: Annotated[bool | None, doc("Deprecated alias of use_activation.")] = None
    activation: Annotated[bool | None, doc("Deprecated alias of use_activation.")] = None

    def make_pooling_params(self, *, dimensions: int | None = None) -> PoolingParams | None:
        """Return the pooling parameters; None if the request sets none, as nearly all do."""
        values = (self.use_activation, self.normalize, dimensions, self.softmax, self.activation)
        if values == (None,) * len(values):
            return None
        return PoolingParams(
            use_activation=self.use_activation,
            normalize=self.normalize,
            dimensions=dimensions,
            softmax=self.softmax,
            activation=self.activation,
        )


class PromptFields(ActivationFields, kw_only=True):
    """Inputs: texts, token ids or conversations, in `input` or `messages`."""

    input: Annotated[
        str | list[PromptInput] | ChatMessage | None,
        doc('A text, {"text": ...}, {"content": [parts]}, token ids, a conversation, or a list of one of these types.'),
    ] = None
    messages: Annotated[
        list[ChatMessage | list[ChatMessage]] | None,
        doc("One or several conversations, which may contain images. Mutually exclusive with input."),
    ] = None
    add_special_tokens: Annotated[
        bool | None, doc("Add special tokens. Default: true for texts, false for conversations.")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, doc("Append the start of an assistant message to the conversation.")
    ] = None
    continue_final_message: Annotated[bool | None, doc("Do not end the last message.")] = None
    chat_template: Annotated[str | None, doc("Jinja chat template; requires --trust-request-chat-template.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("Variables of the chat template.")] = None
    media_io_kwargs: Annotated[dict[str, Any] | None, MEDIA_IO_KWARGS_DOC] = None

    @property
    def is_conversation(self) -> bool:
        """Whether the inputs are conversations, whose chat template already adds special tokens."""
        if self.messages is not None:
            return True
        if not isinstance(self.input, list) or not self.input:
            return False
        first = self.input[0]
        return (isinstance(first, dict) and not is_object_input(first)) or (
            isinstance(first, list) and bool(first) and isinstance(first[0], dict)
        )

    def make_inputs(self, context: RequestContext) -> list[Input]:
        if self.messages is not None and self.input is not None:
            raise InvalidBody("input and messages are mutually exclusive; set one of them", param="body.input")
        inputs: Any = self.messages if self.messages is not None else self.input
        name = "messages" if self.messages is not None else "input"
        if inputs is None:
            raise InvalidBody("input is required (or messages, for a conversation)", param="body.input", kind="missing")
        if isinstance(inputs, str):
            return [inputs]
        if isinstance(inputs, dict):
            if not is_object_input(inputs):
                expected = 'a text, {"text": ...}, token ids or a list of one of these types'
                raise InvalidBody(f"{name}: expected {expected}", param=f"body.{name}", kind="string_type")
            inputs = [inputs]
        if not inputs:
            raise BadRequest("You must pass at least one prompt", param=name)
        if set(map(type, inputs)) == {str}:
            return inputs  # type: ignore[no-any-return]  # all are strings
        has_objects = is_object_input(inputs[0]) or (isinstance(inputs[0], str) and any(map(is_object_input, inputs)))
        if has_objects and self.messages is None:
            context.check_num_items(len(inputs), name)
            return [parse_object_input(item, f"{name}.{index}", context) for index, item in enumerate(inputs)]
        check_same_type(inputs, name)
        if isinstance(inputs[0], int):
            return [inputs]  # one prompt of token ids
        context.check_num_items(len(inputs), name)
        if isinstance(inputs[0], dict):
            return [self._make_conversation(inputs, name, context)]
        return [self._make_input(item, f"{name}.{index}", context) for index, item in enumerate(inputs)]

    def _make_input(self, item: Any, name: str, context: RequestContext) -> Input:
        if not item:
            raise BadRequest("a prompt must not be an empty list; expected token ids or messages", param=name)
        check_same_type(item, name)
        return self._make_conversation(item, name, context) if isinstance(item[0], dict) else item

    def _make_conversation(self, messages: list[ChatMessage], name: str, context: RequestContext) -> Input:
        """Return the conversation; for a model without a chat template, the text of a single user message.

        A listwise reranker has a prompt of its own, and refuses conversations.
        """
        conversation = make_conversation(self, messages, context, name)
        model_info = context.model_info
        if model_info.has_chat_template or self.chat_template is not None or "listwise" in model_info.score_types:
            return conversation
        text = read_single_text(messages)
        return conversation if text is None else text

    def to_pool_request(
        self, task: Task, context: RequestContext, *, dimensions: int | None = None, **extra_fields: Any
    ) -> PoolRequest:
        """Return the engine request for this task on every input, with `extra_fields` set on it."""
        inputs = self.make_inputs(context)
        return PoolRequest(
            task=task,
            inputs=inputs,
            params=self.make_pooling_params(dimensions=dimensions),
            tokenization=self.resolve_tokenization_params(inputs),
            adapter=self.adapter,
            mm_processor_kwargs=self.mm_processor_kwargs or {},
            scheduling=self.make_scheduling_params(),
            **extra_fields,
        )

    def resolve_tokenization_params(self, inputs: Sequence[Input] = ()) -> TokenizationParams:
        """Return the parameters; `inputs`: those of the request, as `make_inputs` returns them."""
        add_special_tokens = self.add_special_tokens
        if add_special_tokens is None:
            add_special_tokens = bool(inputs and isinstance(inputs[0], str)) or not self.is_conversation
        return self.make_tokenization_params(add_special_tokens=add_special_tokens)


class EncodingFields(PromptFields, kw_only=True):
    """Encoding of the values in the response."""

    encoding_format: Annotated[
        EncodingFormat | None, doc("Default: float. bytes_only is bytes without the metadata header.")
    ] = None
    embed_dtype: Annotated[EmbedDType | None, doc("dtype of base64 and bytes. Default: float32.")] = None
    endianness: Annotated[Endianness | None, doc("Byte order of base64 and bytes. Default: that of the server.")] = None

    @property
    def byte_format(self) -> tuple[EmbedDType, Endianness]:
        """The format of base64 and bytes."""
        return self.embed_dtype or "float32", self.endianness or "native"


class PromptTextFields(EncodingFields, kw_only=True):
    """Prompt prepended to texts: given directly, by name, or by input type."""

    prompt: Annotated[str | None, PROMPT_DOC] = None
    prompt_name: Annotated[str | None, PROMPT_NAME_DOC] = None
    input_type: Annotated[str | None, INPUT_TYPE_DOC] = None
    role: Annotated[RoleName | None, doc("Alias of input_type for query and document.")] = None

    def to_pool_request(
        self, task: Task, context: RequestContext, *, dimensions: int | None = None, **extra_fields: Any
    ) -> PoolRequest:
        extra_fields |= {"prompt": self.prompt, "prompt_name": self.prompt_name, "input_type": self.input_type}
        return super().to_pool_request(task, context, dimensions=dimensions, role=parse_role(self.role), **extra_fields)


class ChatOptions(Protocol):
    """Fields that control how a conversation is rendered."""

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
    """Return one conversation. `default_generation_prompt`: add_generation_prompt if the request does not set it."""
    kwargs = options.chat_template_kwargs or {}
    check_chat_template(options.chat_template, kwargs, context)
    context.check_num_items(len(messages), name)
    if not messages:
        raise InvalidBody("messages: expected at least one message", param="body.messages", kind="too_short")
    return Conversation(
        messages,
        template=options.chat_template,
        template_kwargs=kwargs,
        add_generation_prompt=default_generation_prompt
        if options.add_generation_prompt is None
        else options.add_generation_prompt,
        continue_final_message=bool(options.continue_final_message),
    )


def is_object_input(item: Any) -> bool:
    """Whether an input is {"text": ...}, {"image": ...} or {"content": [...]}, of Jina or OpenRouter, not a message."""
    return isinstance(item, dict) and "role" not in item and any(name in item for name in ("text", "image", "content"))


def parse_object_input(item: Any, name: str, context: RequestContext) -> Input:
    parsed = parse_score_input(item, name, context.model_info)
    if not isinstance(parsed, str) and context.model_info.has_chat_template:
        raise BadRequest(
            f"{name} is an image, which {context.model_info.name} reads in conversations; send it in messages",
            param=name,
        )
    return parsed


def read_single_text(messages: list[ChatMessage]) -> str | None:
    """Return the text of a conversation that is one user message without images; None for others."""
    if len(messages) != 1 or messages[0].get("role") != "user":
        return None
    content = messages[0].get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    return "\n".join(texts) if texts and all(isinstance(text, str) for text in texts) else None  # type: ignore[arg-type]


def check_chat_template(template: str | None, kwargs: dict[str, Any], context: RequestContext) -> None:
    """Raise if the request has a chat template, which is code, and the server does not trust those."""
    if (template is not None or "chat_template" in kwargs) and not context.settings.trust_request_chat_template:
        raise BadRequest(UNTRUSTED_TEMPLATE_MESSAGE, param="chat_template")
    if template is not None and len(template) > MAX_TEMPLATE_CHARS:
        raise BadRequest(
            f"chat_template has {len(template)} characters, limit {MAX_TEMPLATE_CHARS}",
            param="chat_template",
        )


def check_same_type(items: list[Any], name: str) -> None:
    """Raise unless all items of a list have the type of the first."""
    if len(set(map(type, items))) == 1:
        return
    first_type = type(items[0])
    for index, item in enumerate(items):
        if type(item) is not first_type:
            names = {str: "a string", int: "a token id", list: "a list", dict: "a message"}
            kinds = {str: "string_type", int: "int_type", list: "list_type", dict: "dict_type"}
            raise InvalidBody(
                f"{name}.{index}: expected {names[first_type]} like the first item, got {names[type(item)]}",
                param=f"body.{name}.{index}",
                kind=kinds[first_type],
                value=item,
            )
