"""Tiny models and three server processes, shared by all tests of the seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins.conftest import install_plugin
from tests.seeds.checkpoints import Models
from tests.serving.server_process import ServerProcess

__all__ = ["install_plugin"]  # a fixture

EMBEDDER, RERANKER, CLASSIFIER = "intfloat/e5-small", "BAAI/bge-reranker-base", "jason9693/Qwen2.5-1.5B-apeach"
CHUNKED = {"pooling_type": "MEAN", "normalize": True, "enable_chunked_processing": True, "max_embed_len": 3072000}


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    models = Models(tmp_path_factory.mktemp("models"))
    yield models
    models.close()


def serve(*flags: str) -> Iterator[ServerProcess]:
    server = ServerProcess(*flags, "--dtype", "float32", "--device", "cpu").wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def embedding_server(default_folder: Path) -> Iterator[ServerProcess]:
    """all-MiniLM-L6-v2 served by the guide's command for long texts."""
    flags = ["--task", "embed", "--override-pooler-config", json.dumps(CHUNKED), "--trust-remote-code"]
    yield from serve(str(default_folder), *flags, "--served-model-name", EMBEDDER, "multilingual-e5-large")


@pytest.fixture(scope="session")
def reranker_server(models: Models) -> Iterator[ServerProcess]:
    """A tiny XLM-RoBERTa cross-encoder."""
    names = [RERANKER, "BAAI/bge-reranker-v2-m3"]
    yield from serve(str(models.folder("bge-reranker")), "--runner", "pooling", "--served-model-name", *names)


@pytest.fixture(scope="session")
def classifier_server(models: Models) -> Iterator[ServerProcess]:
    """A tiny Qwen2 classifier with two labels."""
    yield from serve(str(models.folder("apeach")), "--runner", "auto", "--served-model-name", CLASSIFIER)
