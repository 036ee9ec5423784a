"""The plugin interface under its names in `vllm.plugins.io_processors.interface`."""

from cenote.plugins.io_processor import Data as IOProcessorInput
from cenote.plugins.io_processor import IOProcessor
from cenote.plugins.io_processor import Result as IOProcessorOutput

__all__ = ["IOProcessor", "IOProcessorInput", "IOProcessorOutput"]
