"""The error of an invalid request, under its name in `vllm.exceptions`."""

from cenote.errors import BadRequest as VLLMValidationError

__all__ = ["VLLMValidationError"]
