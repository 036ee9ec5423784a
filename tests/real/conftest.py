"""Real checkpoints: the default model, and those in the `shared` folder of the project, if present."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cenote.loading.default_model import HUB_NAME, find_default_model

SHARED = Path(__file__).parents[2] / ".." / "shared"
torch.set_num_threads(1)  # results must not depend on the number of threads


def shared_folder(*parts: str) -> Path:
    folder = SHARED.joinpath(*parts).resolve()
    if not folder.exists():
        pytest.skip(f"no {'/'.join(parts)} in a folder `shared` beside the project")
    return folder


def model_folder(name: str) -> Path:
    """Return the folder of the model `default`, or of another in the shared folder."""
    if name != "default":
        return shared_folder("models", name)
    if (folder := find_default_model()) == HUB_NAME:
        pytest.skip("the package of the default model is not installed")
    return Path(folder)
