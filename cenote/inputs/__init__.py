"""Render inputs (texts, token ids, pairs, conversations, images) to token ids and preprocessed images.

The prompt types are here under their names in `vllm.inputs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from cenote.protocol.prompts import DataPrompt, EmbedsPrompt, PromptType, SingletonPrompt, TextPrompt, TokensPrompt

__all__ = ["DataPrompt", "EmbedsPrompt", "PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "cenote.protocol.prompts"))
