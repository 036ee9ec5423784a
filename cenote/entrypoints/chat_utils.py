"""Load chat templates; mirrors `vllm.entrypoints.chat_utils`."""

from __future__ import annotations

from os import PathLike, fspath

from cenote.loading.template_files import read_template_text


def load_chat_template(chat_template: str | PathLike[str] | None) -> str | None:
    """Return a template given as text, or as the path of its file."""
    return None if chat_template is None else read_template_text(fspath(chat_template), "chat_template")
