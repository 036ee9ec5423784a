"""Prompt types under their names in `vllm.inputs.data`."""

from cenote.protocol.prompts import DataPrompt, EmbedsPrompt, PromptType, SingletonPrompt, TextPrompt, TokensPrompt

__all__ = ["DataPrompt", "EmbedsPrompt", "PromptType", "SingletonPrompt", "TextPrompt", "TokensPrompt"]
