"""Names of `vllm.plugins.io_processors`."""

from cenote.plugins.io_processor import IOProcessor

__all__ = ["IOProcessor"]
