"""Chat templates and the types of messages; mirrors `vllm.renderers.chat_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, TypeAlias

from cenote.loading.template_files import read_template_text

# dictionaries of OpenAI's chat API: a message, and the parts of its content
ChatCompletionMessageParam: TypeAlias = Mapping[str, Any]
ChatCompletionContentPartTextParam: TypeAlias = dict[str, Any]
ChatCompletionContentPartImageParam: TypeAlias = dict[str, Any]


def load_chat_template(chat_template: str | PathLike[str] | None) -> str | None:
    """Return a template given as text, or as the path of its file."""
    return None if chat_template is None else read_template_text(fspath(chat_template), "chat_template")
