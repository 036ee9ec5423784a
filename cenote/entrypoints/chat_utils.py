"""Chat templates under their name in older versions of vLLM."""

from cenote.renderers.chat_utils import ChatCompletionMessageParam, load_chat_template

__all__ = ["ChatCompletionMessageParam", "load_chat_template"]
