"""Conversations as one text: which template joins the messages, and what it gets to see of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from cenote.errors import BadRequest, Unsupported
from cenote.inputs.content_format import Reading, reading_of
from cenote.inputs.content_parts import TEXT_PARTS, as_part, kind_of
from cenote.inputs.jinja_sandbox import run_template
from cenote.protocol.input_types import Chat

ContentFormat = Literal["auto", "string", "openai"]
Message: TypeAlias = dict[str, Any]

# fields of the request itself, which its template arguments must not contradict
RESERVED = frozenset(("chat_template", "tokenize", "messages", "add_generation_prompt", "continue_final_message"))
# the names under which what a model thought is sent; templates read the first
REASONING = ("reasoning_content", "reasoning", "thinking")
# stands after the words to be continued; the space tells whether the template trims what it writes
MARK = "\ue000continue\ue000 "
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
    placeholder: str | None = None  # what stands for an image in a text; None: the model reads text only
    plain_template: bool = False  # the tokenizer's has no special tokens: they are those of any text

    def __post_init__(self) -> None:
        if self.content_format not in get_args(ContentFormat):
            known = ", ".join(get_args(ContentFormat))
            raise BadRequest(f"chat_template_content_format is one of {known}, got {self.content_format!r}")
        check_template_kwargs(self.template_kwargs)

    def is_text(self, chat: Chat) -> bool:
        """Whether the conversation is read like a text, special tokens and all."""
        return self.plain_template and not chat.pictures and not chat.template and not self.server_template


def chat_text(chat: Chat, settings: ChatSettings) -> str:
    """The conversation as its template writes it."""
    if chat.continue_final_message and chat.add_generation_prompt:
        raise BadRequest(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True.",
            param="continue_final_message",
        )
    check_template_kwargs(chat.template_kwargs)
    given = _listed(chat.messages)
    if settings.placeholder is None:
        _check_texts(given)
    template = _template(chat, settings)
    reading = _reading(template, settings)
    messages = [_message(each, f"messages[{place}]", reading, settings.placeholder) for place, each in enumerate(given)]
    continued = None
    if chat.continue_final_message:
        continued = _mark_end(messages[-1], chat.messages[-1].get("content"))
    variables = {
        "tools": None,
        "documents": None,
        **settings.special_tokens,
        **settings.template_kwargs,
        **chat.template_kwargs,
        "messages": messages,
        "add_generation_prompt": chat.add_generation_prompt,
    }
    num_chars = sum(CHARS_PER_MESSAGE + _num_chars(message["content"]) for message in messages)
    text = run_template(template, variables, name="chat", num_chars=num_chars)
    return text if continued is None else _up_to_mark(text, continued)


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    if reserved := RESERVED & set(kwargs):
        raise BadRequest(
            f"chat_template_kwargs contains reserved keys: {sorted(reserved)}; "
            "they are given as fields of the request or not at all",
            param="chat_template_kwargs",
        )


def _template(chat: Chat, settings: ChatSettings) -> str:
    for template in (chat.template, settings.server_template, settings.tokenizer_template):
        if template:
            return template
    raise BadRequest(
        "messages need a chat template, and this model's tokenizer has none: start the server with --chat-template, "
        "or send the text as input",
        param="messages",
    )


def _reading(template: str, settings: ChatSettings) -> Reading:
    if settings.content_format != "auto":
        return settings.content_format
    try:
        return reading_of(template)
    except Exception:  # it is no Jinja, which running it will say in better words
        return "string"


def _listed(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence):
        raise BadRequest(f"messages is a list of messages, not {type(messages).__name__}", param="messages")
    if not messages:
        raise BadRequest("messages is empty; a conversation has at least one message", param="messages")
    return messages


def _check_texts(messages: Sequence[Mapping[str, Any]]) -> None:
    """What a model of text cannot read is said before anything else, such as a template that it has not either."""
    contents = [each.get("content") if isinstance(each, Mapping) else None for each in messages]
    for number, content in enumerate(contents):
        for place, part in enumerate(content if isinstance(content, list | tuple) else ()):
            where = f"messages[{number}].content[{place}]"
            if isinstance(part, Mapping) and (kind := kind_of(part, where, "messages")) not in TEXT_PARTS:
                raise Unsupported(f"{where} is of type {kind}, but this model reads text only", param="messages")


def _message(given: Mapping[str, Any], where: str, reading: Reading, placeholder: str | None) -> Message:
    """A message as the template reads it; entries that are null are left out."""
    if not isinstance(given, Mapping):
        raise BadRequest(f"{where} is an object with role and content, not {type(given).__name__}", param="messages")
    if not isinstance(role := given.get("role"), str):
        kind = "missing" if role is None else type(role).__name__
        raise BadRequest(f"{where}.role is a string such as user, system or assistant; it is {kind}", param="messages")
    message = {name: value for name, value in given.items() if value is not None}
    message["content"] = _content(given.get("content"), f"{where}.content", reading, placeholder)
    if (thought := next((message[name] for name in REASONING if name in message), None)) is not None:
        message = {"thinking": thought, **message, "reasoning_content": thought}
    if isinstance(calls := message.get("tool_calls"), list):
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def _content(given: Any, where: str, reading: Reading, placeholder: str | None) -> str | list[Message]:
    if isinstance(given, str) and reading != "openai":
        return given
    if isinstance(given, str):
        given = [given]
    if given is None:
        given = []
    if not isinstance(given, list | tuple):
        kind = type(given).__name__
        raise BadRequest(f"{where} is a string, a list of parts or null, not {kind}", param="messages")
    parts = [_part(part, f"{where}[{place}]", placeholder) for place, part in enumerate(given)]
    return _joined(parts, placeholder or "") if reading == "string" else parts


def _part(given: Any, where: str, placeholder: str | None) -> Message:
    """One part of a content; images have been read by now, and what is left of them is where they stand."""
    if given == {"type": "image"} and placeholder is not None:
        return {"type": "image"}
    return {"type": "text", "text": as_part(given, where)}


def _joined(parts: Sequence[Message], placeholder: str) -> str:
    """As one text: images first, those that are not marked in it already."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    marked = sum(text.count(placeholder) for text in texts) if placeholder else 0
    missing = len(parts) - len(texts) - marked
    return "\n".join([*[placeholder] * (missing if placeholder else 0), *texts])


def _tool_call(given: Any) -> Any:
    """Clients send the arguments of a call as JSON text, templates write them as JSON themselves."""
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return given
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return given
    return {**given, "function": {**function, "arguments": arguments}}


def _num_chars(content: str | list[Message]) -> int:
    return len(content) if isinstance(content, str) else sum(len(part.get("text", "")) for part in content)


def _mark_end(message: Message, given: object) -> str:
    """Put the mark behind the last words of the message; these come back."""
    if given is None or given == []:
        raise BadRequest("continue_final_message is set, but the last message has no content", param="messages")
    if isinstance(message["content"], str):
        words: str = message["content"]
        message["content"] = words + MARK
    elif "text" in (last := message["content"][-1]):
        words = last["text"]
        last["text"] = words + MARK
    else:
        raise BadRequest("continue_final_message is set, but the last message ends with an image", param="messages")
    return words


def _up_to_mark(text: str, words: str) -> str:
    place = text.rfind(MARK.rstrip())
    if place < 0 or words.strip() not in text:
        raise BadRequest(
            "continue_final_message is set, but the chat template does not write the last message as it was given; "
            "it cannot be continued",
            param="continue_final_message",
        )
    return text[:place] if text.startswith(MARK, place) else text[:place].rstrip()
