"""Recognize torch tensors without importing torch."""

from __future__ import annotations

import sys


def is_tensor(value: object) -> bool:
    """Whether a value is a torch tensor; nobody has one before torch is imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
