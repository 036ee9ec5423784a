"""Engine for the worker: llama.cpp with a GGUF file of the same weights."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import Any


def load_sibling(name: str) -> Any:
    """Import a file of this folder, which is not on the path of the worker."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Engine:
    def __init__(self, model: str, task: str, settings: dict[str, Any]) -> None:
        import llama_cpp

        with tempfile.TemporaryDirectory() as folder:  # mapped into memory, so that it can be deleted
            path = os.path.join(folder, "model.gguf")
            load_sibling("gguf_file").write_gguf(model, path, weights=settings["weights"], pooling=settings["pooling"])
            self.model = llama_cpp.Llama(
                path,
                embedding=True,
                n_ctx=settings["max_tokens"],
                n_batch=settings["max_tokens"],
                n_ubatch=settings["max_tokens"],
                n_threads=os.cpu_count(),
                n_threads_batch=os.cpu_count(),
                verbose=False,
            )
        self.settings = {**settings, "threads": os.cpu_count(), "order": "as given: sequences are packed"}

    def run(self, task: str, texts: list[str]) -> Any:
        return self.model.embed(texts, normalize=True)

    def to_rows(self, task: str, outputs: Any) -> list[Any]:
        return list(outputs)
