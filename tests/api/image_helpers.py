"""Tiny models that see, and images as clients send them."""

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
    """The same model as a server has it: whoever asks is a stranger, and may name no file."""
    engine = PoolingEngine(llm.engine.model, llm.config)
    service = AppState(ServerConfig(**settings))
    service.set_engine(engine)
    yield TestClient(build_app(service))
    engine.stop()


def data_uri(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def image_part(image: Image.Image | str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image if isinstance(image, str) else data_uri(image)}}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def make_message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def save_tiny_vl_reranker(folder: Path) -> None:
    """A Qwen3-VL that has three classes."""
    save_tiny_qwen3_vl(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    tensors["score.weight"] = torch.randn(3, 32, generator=torch.Generator().manual_seed(3))
    save_file(tensors, folder / "model.safetensors")
    labels = {"0": "cat", "1": "dog", "2": "neither"}
    change_config(folder, architectures=["Qwen3VLForSequenceClassification"], id2label=labels, num_labels=3)
