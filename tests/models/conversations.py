"""Conversations, and how Llama 3 writes them."""

from __future__ import annotations

from typing import Any

CONVERSATIONS = [
    [("user", "how big is the river?"), ("assistant", "the old river is big.")],
    [("user", "a cat"), ("assistant", "a dog"), ("user", "is it red?"), ("assistant", "it is in the city")],
    [("system", "be good"), ("user", "where is berlin?"), ("assistant", "in the red city")],
]


def to_text(turns: list[tuple[str, str]]) -> str:
    parts = [f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>" for role, text in turns]
    return "<|begin_of_text|>" + "".join(parts)


def to_messages(turns: list[tuple[str, str]]) -> list[Any]:
    return [{"role": role, "content": text} for role, text in turns]
