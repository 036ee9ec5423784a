"""Names of older releases in `vllm.entrypoints.openai.protocol`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cenote.utils.serial_utils import EMBED_DTYPE_TO_TORCH_DTYPE

__all__ = ["EMBED_DTYPE_TO_TORCH_DTYPE", "IOProcessorRequest", "IOProcessorResponse"]


@dataclass(slots=True)
class IOProcessorRequest:
    """The request type that older plugins import; they get the data itself."""

    data: Any


@dataclass(slots=True)
class IOProcessorResponse:
    """What `output_to_response` of older plugins returns: its `data` is sent to the client."""

    request_id: str | None
    data: Any
