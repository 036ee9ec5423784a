"""What other packages may bring along: IO processors, which give a model an input and an output of their own."""

from cenote.plugins.io_processor import IOProcessor

__all__ = ["IOProcessor"]
