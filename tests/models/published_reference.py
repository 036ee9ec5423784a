"""Models of Transformers with the weights of a checkpoint, whatever its config.json calls itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers


def reference(folder: Path, name: str, **changes: Any) -> transformers.PreTrainedModel:
    """Load the weights into a class of Transformers, whatever config.json calls itself."""
    model_class = getattr(transformers, name)
    values = json.loads((folder / "config.json").read_text())
    values = {key: value for key, value in values.items() if key not in ("auto_map", "model_type", "architectures")}
    config = model_class.config_class(**values | changes)
    model: transformers.PreTrainedModel = model_class.from_pretrained(folder, config=config, dtype=torch.float32)
    return model.eval().requires_grad_(False)
