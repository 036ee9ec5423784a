"""Render conversations to text: select the chat template, prepare the messages, run the template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.content_parts import TEXT_PARTS, get_part_type, parse_part
from cenote.inputs.template_kwargs import check_template_kwargs
from cenote.protocol.input_types import Conversation

if TYPE_CHECKING:
    from cenote.inputs.content_format import ResolvedContentFormat

ContentFormat = Literal["auto", "string", "openai"]
TemplateMessage: TypeAlias = dict[str, Any]

# message fields for reasoning text; templates read the first
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
# appended to the message to continue; if its trailing space is missing afterwards, the template trims content
CONTINUATION_MARKER = "\ue000continue\ue000 "
# every message, even an empty one, counts as this many characters for the template's time limit
CHARS_PER_MESSAGE = 1000
# JSON text in the calls of tools of one conversation, whose values take many times its bytes
MAX_ARGUMENT_CHARS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Defaults for conversations; fields of a request override them."""

    server_template: str | None = None
    tokenizer_template: str | None = None
    content_format: ContentFormat = "auto"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token -> <s>
    image_placeholder: str | None = None  # None: the model reads text only
    has_plain_template: bool = False  # the tokenizer's template writes no special tokens: add them as for a text

    def __post_init__(self) -> None:
        if self.content_format not in get_args(ContentFormat):
            known = ", ".join(get_args(ContentFormat))
            raise BadRequest(f"invalid chat_template_content_format={self.content_format!r}; expected one of: {known}")
        check_template_kwargs(self.template_kwargs, "chat")

    def is_plain_text(self, conversation: Conversation) -> bool:
        """Whether the rendered conversation gets special tokens as a text does."""
        return (
            self.has_plain_template
            and not conversation.images
            and not conversation.template
            and not self.server_template
        )


def render_conversation(conversation: Conversation, settings: ChatSettings) -> str:
    """Return the text of a conversation."""
    if conversation.continue_final_message and conversation.add_generation_prompt:
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            param="continue_final_message",
        )
    check_template_kwargs(conversation.template_kwargs, "chat")
    raw_messages = _check_messages(conversation.messages)
    if settings.image_placeholder is None:
        _check_text_only(raw_messages)
    template = _select_template(conversation, settings)
    content_format = _resolve_content_format(template, settings)
    _check_tool_calls(raw_messages)
    messages = [
        _prepare_message(message, f"messages[{index}]", content_format, settings.image_placeholder)
        for index, message in enumerate(raw_messages)
    ]
    final_text = None
    if conversation.continue_final_message:
        final_text = _append_marker(messages[-1], conversation.messages[-1].get("content"))
    variables = {
        "tools": None,
        "documents": None,
        **settings.special_tokens,
        **settings.template_kwargs,
        **conversation.template_kwargs,
        "messages": messages,
        "add_generation_prompt": conversation.add_generation_prompt,
    }
    num_chars = sum(CHARS_PER_MESSAGE + _count_chars(message["content"]) for message in messages)
    from cenote.inputs.jinja_sandbox import run_template  # with Jinja, which models of texts do without

    text = run_template(template, variables, name="chat", num_chars=num_chars)
    return text if final_text is None else _cut_at_marker(text, final_text)


def _select_template(conversation: Conversation, settings: ChatSettings) -> str:
    for template in (conversation.template, settings.server_template, settings.tokenizer_template):
        if template:
            return template
    raise BadRequest(
        "messages need a chat template, but this model's tokenizer has none: start the server with --chat-template, "
        "or send the text as input",
        param="messages",
    )


def _resolve_content_format(template: str, settings: ChatSettings) -> ResolvedContentFormat:
    if settings.content_format != "auto":
        return settings.content_format
    from cenote.inputs.content_format import detect_content_format  # with Jinja

    try:
        return detect_content_format(template)
    except Exception:  # invalid Jinja: running the template raises a better error
        return "string"


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise BadRequest(f"messages must be a list of messages, got {type(messages).__name__}", param="messages")
    if not messages:
        raise BadRequest("messages is empty; a conversation needs at least one message", param="messages")
    return messages


def _check_text_only(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refuse images before the chat template is needed: a missing template would be the less helpful error."""
    contents = [message.get("content") if isinstance(message, Mapping) else None for message in messages]
    for message_index, content in enumerate(contents):
        for part_index, part in enumerate(content if isinstance(content, list | tuple) else ()):
            path = f"messages[{message_index}].content[{part_index}]"
            if isinstance(part, Mapping) and (kind := get_part_type(part, path, "messages")) not in TEXT_PARTS:
                raise Unsupported(f"{path} is of type {kind}, but this model reads text only", param="messages")


def _prepare_message(
    raw_message: Mapping[str, Any],
    param_path: str,
    content_format: ResolvedContentFormat,
    image_placeholder: str | None,
) -> TemplateMessage:
    """Return a message in the form that the template expects, without null entries."""
    if not isinstance(raw_message, Mapping):
        raise BadRequest(
            f"{param_path} must be an object with role and content, got {type(raw_message).__name__}", param="messages"
        )
    if not isinstance(role := raw_message.get("role"), str):
        kind = "nothing" if role is None else type(role).__name__
        raise BadRequest(
            f"{param_path}.role must be a string such as user, system or assistant, got {kind}", param="messages"
        )
    message = {name: value for name, value in raw_message.items() if value is not None}
    message["content"] = _prepare_content(
        raw_message.get("content"), f"{param_path}.content", content_format, image_placeholder
    )
    if (reasoning := next((message[name] for name in REASONING_FIELDS if name in message), None)) is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_parse_tool_call(call) for call in calls]
    return message


def _prepare_content(
    content: Any, param_path: str, content_format: ResolvedContentFormat, image_placeholder: str | None
) -> str | list[TemplateMessage]:
    if isinstance(content, str) and content_format != "openai":
        return content
    if isinstance(content, str):
        content = [content]
    if content is None:
        content = []
    if not isinstance(content, list | tuple):
        kind = type(content).__name__
        raise BadRequest(f"{param_path} must be a string, a list of parts or null, got {kind}", param="messages")
    parts = [_prepare_part(part, f"{param_path}[{index}]", image_placeholder) for index, part in enumerate(content)]
    return _join_parts(parts, image_placeholder or "") if content_format == "string" else parts


def _prepare_part(part: Any, param_path: str, image_placeholder: str | None) -> TemplateMessage:
    """Return one content part; processed images have become `{"type": "image"}`, which marks their position."""
    if part == {"type": "image"} and image_placeholder is not None:
        return {"type": "image"}
    return {"type": "text", "text": parse_part(part, param_path)}


def _join_parts(parts: Sequence[TemplateMessage], image_placeholder: str) -> str:
    """Join parts to one text; placeholders of images that the texts do not contain come first."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    num_placed = sum(text.count(image_placeholder) for text in texts) if image_placeholder else 0
    missing = len(parts) - len(texts) - num_placed
    return "\n".join([*[image_placeholder] * (missing if image_placeholder else 0), *texts])


def _check_tool_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    calls = [message.get("tool_calls") for message in messages if isinstance(message, Mapping)]
    texts = [_get_arguments(call) for part in calls if isinstance(part, list) for call in part]
    if (num_chars := sum(len(text) for text in texts if text is not None)) > MAX_ARGUMENT_CHARS:
        raise BadRequest(
            f"the arguments of tool_calls have {num_chars} characters, limit {MAX_ARGUMENT_CHARS} per conversation",
            param="messages",
        )


def _parse_tool_call(tool_call: Any) -> Any:
    """Decode the arguments of a call: clients send them as JSON text, templates serialize them again."""
    if (text := _get_arguments(tool_call)) is None:
        return tool_call
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return tool_call
    return {**tool_call, "function": {**tool_call["function"], "arguments": arguments}}


def _get_arguments(tool_call: Any) -> str | None:
    """Return the arguments of a call that are text."""
    function = tool_call.get("function") if isinstance(tool_call, Mapping) else None
    text = function.get("arguments") if isinstance(function, Mapping) else None
    return text if isinstance(text, str) else None


def _count_chars(content: str | list[TemplateMessage]) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _append_marker(message: TemplateMessage, original_content: object) -> str:
    """Append the continuation marker to the text of the message and return that text."""
    if original_content is None or original_content == []:
        raise BadRequest("continue_final_message is set, but the last message has no content", param="messages")
    if isinstance(message["content"], str):
        final_text: str = message["content"]
        message["content"] = final_text + CONTINUATION_MARKER
    elif "text" in (last := message["content"][-1]):
        final_text = last["text"]
        last["text"] = final_text + CONTINUATION_MARKER
    else:
        raise BadRequest("continue_final_message is set, but the last message ends with an image", param="messages")
    return final_text


def _cut_at_marker(text: str, final_text: str) -> str:
    end = text.rfind(CONTINUATION_MARKER.rstrip())
    if end < 0 or final_text.strip() not in text:
        raise BadRequest(
            "continue_final_message is set, but the chat template does not write the last message unchanged, so it "
            "cannot be continued",
            param="continue_final_message",
        )
    return text[:end] if text.startswith(CONTINUATION_MARKER, end) else text[:end].rstrip()
