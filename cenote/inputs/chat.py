"""Conversations as one text: which template joins the messages, and what it gets to see of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.content_format import ResolvedContentFormat, detect_content_format
from cenote.inputs.content_parts import TEXT_PARTS, get_part_type, parse_part
from cenote.inputs.jinja_sandbox import run_template
from cenote.protocol.input_types import Conversation

ContentFormat = Literal["auto", "string", "openai"]
TemplateMessage: TypeAlias = dict[str, Any]

# fields of the request itself, which its template arguments must not contradict
RESERVED_TEMPLATE_KWARGS = frozenset(
    ("chat_template", "tokenize", "messages", "add_generation_prompt", "continue_final_message")
)
# the names under which what a model thought is sent; templates read the first
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
# stands after the words to be continued; the space tells whether the template trims what it writes
CONTINUATION_MARKER = "\ue000continue\ue000 "
# a message is work for the template even if it is empty
CHARS_PER_MESSAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """What holds for every conversation that does not say otherwise."""

    server_template: str | None = None
    tokenizer_template: str | None = None
    content_format: ContentFormat = "auto"
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token -> <s>
    image_placeholder: str | None = None  # what stands for an image in a text; None: the model reads text only
    has_plain_template: bool = False  # the tokenizer's has no special tokens: they are those of any text

    def __post_init__(self) -> None:
        if self.content_format not in get_args(ContentFormat):
            known = ", ".join(get_args(ContentFormat))
            raise BadRequest(f"chat_template_content_format is one of {known}, got {self.content_format!r}")
        check_chat_template_kwargs(self.template_kwargs)

    def is_plain_text(self, conversation: Conversation) -> bool:
        """Whether the conversation is read like a text, special tokens and all."""
        return (
            self.has_plain_template
            and not conversation.images
            and not conversation.template
            and not self.server_template
        )


def render_conversation(conversation: Conversation, settings: ChatSettings) -> str:
    """The conversation as its template writes it."""
    if conversation.continue_final_message and conversation.add_generation_prompt:
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            param="continue_final_message",
        )
    check_chat_template_kwargs(conversation.template_kwargs)
    given = _check_messages(conversation.messages)
    if settings.image_placeholder is None:
        _check_text_only(given)
    template = _select_template(conversation, settings)
    reading = _resolve_content_format(template, settings)
    messages = [
        _prepare_message(each, f"messages[{place}]", reading, settings.image_placeholder)
        for place, each in enumerate(given)
    ]
    continued = None
    if conversation.continue_final_message:
        continued = _append_marker(messages[-1], conversation.messages[-1].get("content"))
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
    text = run_template(template, variables, name="chat", num_chars=num_chars)
    return text if continued is None else _cut_at_marker(text, continued)


def check_chat_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    if reserved := RESERVED_TEMPLATE_KWARGS & set(kwargs):
        raise BadRequest(
            f"chat_template_kwargs contains reserved keys: {sorted(reserved)}; "
            "they are given as fields of the request or not at all",
            param="chat_template_kwargs",
        )


def _select_template(conversation: Conversation, settings: ChatSettings) -> str:
    for template in (conversation.template, settings.server_template, settings.tokenizer_template):
        if template:
            return template
    raise BadRequest(
        "messages need a chat template, and this model's tokenizer has none: start the server with --chat-template, "
        "or send the text as input",
        param="messages",
    )


def _resolve_content_format(template: str, settings: ChatSettings) -> ResolvedContentFormat:
    if settings.content_format != "auto":
        return settings.content_format
    try:
        return detect_content_format(template)
    except Exception:  # it is no Jinja, which running it will say in better words
        return "string"


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise BadRequest(f"messages is a list of messages, not {type(messages).__name__}", param="messages")
    if not messages:
        raise BadRequest("messages is empty; a conversation has at least one message", param="messages")
    return messages


def _check_text_only(messages: Sequence[Mapping[str, Any]]) -> None:
    """What a model of text cannot read is said before anything else, such as a template that it has not either."""
    contents = [each.get("content") if isinstance(each, Mapping) else None for each in messages]
    for number, content in enumerate(contents):
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            where = f"messages[{number}].content[{place}]"
            if isinstance(part, Mapping) and (kind := get_part_type(part, where, "messages")) not in TEXT_PARTS:
                raise Unsupported(f"{where} is of type {kind}, but this model reads text only", param="messages")


def _prepare_message(
    raw_message: Mapping[str, Any],
    param_path: str,
    content_format: ResolvedContentFormat,
    image_placeholder: str | None,
) -> TemplateMessage:
    """A message as the template reads it; entries that are null are left out."""
    if not isinstance(raw_message, Mapping):
        raise BadRequest(
            f"{param_path} is an object with role and content, not {type(raw_message).__name__}", param="messages"
        )
    if not isinstance(role := raw_message.get("role"), str):
        kind = "missing" if role is None else type(role).__name__
        raise BadRequest(
            f"{param_path}.role is a string such as user, system or assistant; it is {kind}", param="messages"
        )
    message = {name: value for name, value in raw_message.items() if value is not None}
    message["content"] = _prepare_content(
        raw_message.get("content"), f"{param_path}.content", content_format, image_placeholder
    )
    if (thought := next((message[name] for name in REASONING_FIELDS if name in message), None)) is not None:
        message = {"thinking": thought, **message, "reasoning_content": thought}
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
        raise BadRequest(f"{param_path} is a string, a list of parts or null, not {kind}", param="messages")
    parts = [_prepare_part(part, f"{param_path}[{place}]", image_placeholder) for place, part in enumerate(content)]
    return _join_parts(parts, image_placeholder or "") if content_format == "string" else parts


def _prepare_part(part: Any, param_path: str, image_placeholder: str | None) -> TemplateMessage:
    """One part of a content; images have been read by now, and what is left of them is where they stand."""
    if part == {"type": "image"} and image_placeholder is not None:
        return {"type": "image"}
    return {"type": "text", "text": parse_part(part, param_path)}


def _join_parts(parts: Sequence[TemplateMessage], image_placeholder: str) -> str:
    """As one text: images first, those that are not marked in it already."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    marked = sum(text.count(image_placeholder) for text in texts) if image_placeholder else 0
    missing = len(parts) - len(texts) - marked
    return "\n".join([*[image_placeholder] * (missing if image_placeholder else 0), *texts])


def _parse_tool_call(tool_call: Any) -> Any:
    """Clients send the arguments of a call as JSON text, templates write them as JSON themselves."""
    function = tool_call.get("function") if isinstance(tool_call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return tool_call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return tool_call
    return {**tool_call, "function": {**function, "arguments": arguments}}


def _count_chars(content: str | list[TemplateMessage]) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _append_marker(message: TemplateMessage, original_content: object) -> str:
    """Put the mark behind the last words of the message; these come back."""
    if original_content is None or original_content == []:
        raise BadRequest("continue_final_message is set, but the last message has no content", param="messages")
    if isinstance(message["content"], str):
        words: str = message["content"]
        message["content"] = words + CONTINUATION_MARKER
    elif "text" in (last := message["content"][-1]):
        words = last["text"]
        last["text"] = words + CONTINUATION_MARKER
    else:
        raise BadRequest("continue_final_message is set, but the last message ends with an image", param="messages")
    return words


def _cut_at_marker(text: str, final_text: str) -> str:
    place = text.rfind(CONTINUATION_MARKER.rstrip())
    if place < 0 or final_text.strip() not in text:
        raise BadRequest(
            "continue_final_message is set, but the chat template does not write the last message as it was given; "
            "it cannot be continued",
            param="continue_final_message",
        )
    return text[:place] if text.startswith(CONTINUATION_MARKER, place) else text[:place].rstrip()
