"""Servers in threads of the test: the app with a real engine, on a real port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.http.server import HttpServer
from cenote.api.sockets import open_socket
from cenote.config.server import ServerConfig
from cenote.doctor.recording import ForwardingProxy

NAME = "all-MiniLM-L6-v2"
EXACT = {"dtype": "float32", "device": "cpu"}

Serve = Callable[[ASGIApp], str]


@contextmanager
def run_app(app: ASGIApp) -> Iterator[str]:
    """Serve an app in a thread and return its URL."""
    listener = open_socket(ServerConfig(host="127.0.0.1", port=0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = HttpServer(app, keep_alive_s=0.2)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
        if isinstance(app, ForwardingProxy):
            app.close()


def make_app(llm: LLM, **settings: Any) -> ASGIApp:
    app_state = AppState(ServerConfig(**settings))
    app_state.set_engine(llm.engine)
    return build_app(app_state)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve apps until the end of the test."""
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(run_app(app))


@pytest.fixture(scope="session")
def minilm(default_folder: Path) -> Iterator[LLM]:
    """The default model in float32, under its own name; short long texts and a cache of results save time."""
    with LLM(
        str(default_folder), served_model_name=NAME, max_model_len=128, result_cache_bytes=10_000_000, **EXACT
    ) as llm:
        yield llm


@pytest.fixture(scope="session")
def embedder(minilm: LLM) -> Iterator[str]:
    with run_app(make_app(minilm)) as url:
        yield url


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Random weights; its scores are logits."""
    from tests.tiny import save_tiny

    folder = tmp_path_factory.mktemp("reranker")
    logits = {"activation_fn": "torch.nn.modules.linear.Identity"}
    options = {"num_labels": 1, "max_position_embeddings": 258, "sentence_transformers": logits}
    save_tiny(folder, "BertForSequenceClassification", **options)
    with LLM(str(folder), **EXACT) as llm, run_app(make_app(llm)) as url:
        yield url


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.tiny import save_tiny

    folder = tmp_path_factory.mktemp("classifier")
    labels = {0: "good", 1: "bad", 2: "neither"}
    save_tiny(folder, "BertForSequenceClassification", id2label=labels, max_position_embeddings=258)
    with LLM(str(folder), **EXACT) as llm, run_app(make_app(llm)) as url:
        yield url
