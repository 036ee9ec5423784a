"""Tiny vision-language models, and images in the formats that clients send."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.config.server import ServerConfig
from cenote.engine.engine import PoolingEngine
from tests.models.tiny_qwen3_vl import make_image, save_tiny_qwen3_vl
from tests.tiny import change_config

CAT, DOG = make_image(40, 60, seed=1), make_image(90, 30, seed=2)


@contextmanager
def make_untrusted_client(llm: LLM, **settings: Any) -> Iterator[TestClient]:
    """Yield a client of the same model with the engine of a server: image paths from requests are refused."""
    engine = PoolingEngine(llm.engine.model, llm.config)
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(engine)
    yield TestClient(build_app(app_state))
    engine.stop()


def data_uri(image: Image.Image, image_format: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, image_format)
    return f"data:image/{image_format.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def image_part(image: Image.Image | str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image if isinstance(image, str) else data_uri(image)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def make_message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def save_tiny_vl_reranker(folder: Path) -> None:
    """Save a tiny Qwen3-VL classifier with three classes."""
    save_tiny_qwen3_vl(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    tensors["score.weight"] = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    save_file(tensors, folder / "model.safetensors")
    labels = {"0": "cat", "1": "dog", "2": "neither"}
    change_config(folder, architectures=["Qwen3VLForSequenceClassification"], id2label=labels, num_labels=3)
