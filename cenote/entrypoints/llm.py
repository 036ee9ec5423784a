"""LLM under its name in `vllm.entrypoints.llm`."""

from cenote.llm import LLM

__all__ = ["LLM"]
