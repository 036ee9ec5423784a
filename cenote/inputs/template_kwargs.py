"""Check `chat_template_kwargs`: the variables that a request or the server passes to a chat or score template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from cenote.errors import BadRequest

TemplateKind: TypeAlias = Literal["chat", "score"]

# variables that the renderer sets itself, and vLLM's message about each kind
RESERVED_KWARGS: Mapping[TemplateKind, frozenset[str]] = {
    "chat": frozenset(("chat_template", "tokenize", "messages", "add_generation_prompt", "continue_final_message")),
    "score": frozenset(("chat_template", "tokenize", "messages", "tools")),
}
RESERVED_MESSAGES: Mapping[TemplateKind, str] = {
    "chat": "chat_template_kwargs contains reserved keys: {keys}; set them as fields of the request instead",
    "score": "chat_template_kwargs contains reserved keys that conflict with fixed scorer arguments: {keys}",
}


def check_template_kwargs(kwargs: Mapping[str, Any], kind: TemplateKind) -> None:
    """Raise BadRequest unless `kwargs` is a mapping without the reserved variables of this kind of template."""
    if not isinstance(kwargs, Mapping):
        raise BadRequest("chat_template_kwargs must be a mapping", param="chat_template_kwargs", value=kwargs)
    if reserved := RESERVED_KWARGS[kind] & set(kwargs):
        raise BadRequest(RESERVED_MESSAGES[kind].format(keys=sorted(reserved)), param="chat_template_kwargs")
