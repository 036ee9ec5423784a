"""Render inputs (texts, token ids, pairs, conversations, images) to token ids and preprocessed images.

The prompt types are here under their names in `vllm.inputs`.
"""

from cenote.protocol.prompts import DataPrompt, EmbedsPrompt, PromptType, SingletonPrompt, TextPrompt, TokensPrompt

__all__ = ["DataPrompt", "EmbedsPrompt", "PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]
