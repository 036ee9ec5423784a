"""What other packages may bring along: IO processors, which give a model an input and an output of their own."""

from cenote.plugins.interfaces import IOProcessor

__all__ = ["IOProcessor"]
