"""Run a program written for vLLM with only its imports changed: `vllm` becomes `cenote`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.http.server import HttpServer
from cenote.api.sockets import open_socket
from cenote.config.server import ServerConfig
from cenote.kernels.cpu_features import CPU_LEVEL
from tests.cpu import FLOAT32_LEVEL

PROGRAMS = Path(__file__).parent / "programs"
IMPORT = re.compile(r"^(\s*(?:from|import) )vllm\b", re.MULTILINE)


def change_imports(source: str) -> str:
    """Return the source with `cenote` in the place of `vllm` in its imports."""
    return IMPORT.sub(r"\1cenote", source)


def run_program(name: str, *argv: str, **constants: Any) -> Any:
    """Return what `main` of a program returns; `argv` is its command line, `constants` replace those of its module."""
    path = PROGRAMS / f"{name}.py"
    namespace: dict[str, Any] = {"__name__": "program", "__file__": str(path)}
    exec(compile(change_imports(path.read_text()), str(path), "exec"), namespace)
    assert not constants.keys() - namespace.keys(), "the program has no such constant"
    namespace.update(constants)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(path), *argv])
        patch.setenv(CPU_LEVEL, FLOAT32_LEVEL)
        return namespace["main"](namespace["parse_args"]()) if "parse_args" in namespace else namespace["main"]()


@contextmanager
def serve(llm: LLM, **settings: Any) -> Iterator[list[str]]:
    """Serve a model over HTTP from a thread; yields the flags with which a client program reaches it."""
    app_state = AppState(ServerConfig(host="127.0.0.1", port=0, **settings))
    app_state.set_engine(llm.engine)
    listener = open_socket(app_state.settings)
    port = listener.getsockname()[1]
    server = HttpServer(build_app(app_state), keep_alive_s=app_state.settings.keep_alive_s)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield ["--host", "127.0.0.1", "--port", str(port)]
    finally:
        server.should_exit = True
        thread.join()
