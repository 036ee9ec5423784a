"""Plugin interface: IO processors, which define their own input and output format for a model."""

from cenote.plugins.io_processor import IOProcessor

__all__ = ["IOProcessor"]
