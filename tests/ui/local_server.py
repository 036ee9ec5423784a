"""A server in a thread of the tests: several models without a process, and an import of torch, for each of them."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.http.server import HttpServer
from cenote.api.served_models import EngineUse, ServedModel
from cenote.config.server import ServerConfig

TIMEOUT_S = 60.0  # far more than any step takes


class LocalServer:
    """The app and the HTTP server of `cenote serve`, with the engines in this process."""

    def __init__(self, models: Mapping[str, tuple[Path, dict[str, Any]]]) -> None:
        """`models`: folder and engine options by name."""
        self.loaded = ExitStack()
        app_state = AppState(ServerConfig(allow_local_admin=True))
        served = []
        for slot, (name, (folder, options)) in enumerate(models.items()):
            llm = self.loaded.enter_context(LLM(str(folder), served_model_name=name, dtype="float32", **options))
            model = ServedModel(name, (), str(folder))
            model.set_use(EngineUse(llm.engine, app_state.make_admission(slot)))
            served.append(model)
        app_state.models.set(served)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = HttpServer(build_app(app_state), keep_alive_s=TIMEOUT_S)
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],), daemon=True)
        self.thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.address, timeout=TIMEOUT_S)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(TIMEOUT_S)
        self.loaded.close()
