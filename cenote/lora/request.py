"""LoRARequest under its name in `vllm.lora.request`."""

from cenote.protocol.params import LoRARequest

__all__ = ["LoRARequest"]
