"""Token ids in requests of OpenAI's embeddings API, whose clients may have made them with OpenAI's tokenizer.

LangChain's OpenAIEmbeddings does so by default. Most of these ids exist in other vocabularies too, as other tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from cenote.api.request_context import RequestContext
from cenote.api.tiktoken_file import decode_ids
from cenote.errors import BadRequest
from cenote.protocol.input_types import TEXTS_ADVICE, Input
from cenote.protocol.model_info import ModelInfo

WARNING = (
    "token ids without the special tokens of this model's tokenizer: those of another one, such as tiktoken, give "
    f"wrong vectors; {TEXTS_ADVICE}"
)


async def apply_token_id_policy(inputs: Sequence[Input], context: RequestContext) -> Sequence[Input]:
    """Return the inputs, or their texts, as `--token-ids` says; raise if it refuses them."""
    settings = context.settings
    if settings.token_ids == "allow" or not isinstance(inputs[0], list):
        return inputs
    prompts = cast("Sequence[list[int]]", inputs)  # all inputs of a request have the same type
    if all(is_made_by_tokenizer(ids, context.model_info) for ids in prompts):
        return inputs
    if settings.token_ids == "refuse":
        raise BadRequest(
            "token ids without the special tokens of this model's tokenizer are refused, as those of another one, "
            f"such as tiktoken, give wrong vectors; {TEXTS_ADVICE}, or start the server with --token-ids warn",
            param="input",
        )
    if settings.tiktoken_file is not None:
        return await decode_prompts(prompts, settings.tiktoken_file, settings.max_body_bytes)
    context.warning = WARNING
    return inputs


def is_made_by_tokenizer(ids: Sequence[int], model_info: ModelInfo) -> bool:
    """Whether a prompt has the special tokens that the model's tokenizer always adds; False if it adds none."""
    prefix, suffix = model_info.special_tokens
    if not prefix and not suffix:
        return False
    end = len(ids) - len(suffix)
    return end >= len(prefix) and tuple(ids[: len(prefix)]) == prefix and tuple(ids[end:]) == suffix


async def decode_prompts(prompts: Sequence[Sequence[int]], path: str, max_bytes: int) -> list[str]:
    """Return the texts of token ids, which have as many bytes as a request may have."""
    texts = []
    for ids in prompts:
        text = decode_ids(ids, path, max_bytes)
        max_bytes -= len(text)
        texts.append(text.decode(errors="replace"))  # clients split long texts between any two tokens
        await asyncio.sleep(0)
    return texts
