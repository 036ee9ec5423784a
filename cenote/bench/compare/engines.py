"""The engines there are to compare, each with the script that runs it and the environment it needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cenote.bench.compare.environments import ENVIRONMENTS
from cenote.errors import BadRequest

OURS = "cenote"
REFERENCE = "st-float32"  # its answers are what the others' are held against
EMBED, TOKEN_EMBED, SCORE, TOKEN_CLASSIFY = "embed", "token_embed", "score", "token_classify"
EMBED_IMAGES = "embed_images"
ALL_TASKS = (EMBED, TOKEN_EMBED, SCORE, TOKEN_CLASSIFY)  # of texts


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    title: str
    script: str
    environment: str | None  # None: the one that Cenote runs in
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[str] = ALL_TASKS
    reads_export: bool = False  # wants the model as ONNX or OpenVINO files
    by_default: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)  # of its process

    def python(self, root: Path) -> Path | None:
        """None where it is not installed."""
        return Path(sys.executable) if self.environment is None else ENVIRONMENTS[self.environment].python(root)


_ST, _EXPORTABLE = "run_sentence_transformers.py", (EMBED, TOKEN_EMBED, SCORE)
_SEEING = (*ALL_TASKS, EMBED_IMAGES)
ENGINES = {
    engine.name: engine
    for engine in (
        Engine(OURS, "Cenote", "run_cenote.py", None, {}, _SEEING),
        Engine("cenote-int8", "Cenote int8", "run_cenote.py", None, {"quantization": "int8"}, _SEEING),
        Engine(
            "cenote-float32", "Cenote float32", "run_cenote.py", None, {"dtype": "float32"}, _SEEING, by_default=False
        ),
        Engine(REFERENCE, "sentence-transformers float32", _ST, "st", {"dtype": "float32"}, _SEEING),
        Engine("st-bfloat16", "sentence-transformers bfloat16", _ST, "st", {"dtype": "bfloat16"}, _SEEING),
        Engine("st-onnx", "sentence-transformers ONNX", _ST, "openvino", {"backend": "onnx"}, _EXPORTABLE, True),
        Engine(
            "st-openvino", "sentence-transformers OpenVINO", _ST, "openvino", {"backend": "openvino"}, _EXPORTABLE, True
        ),
        Engine("vllm", "vLLM (CPU) bfloat16", "run_vllm.py", "vllm", {"dtype": "bfloat16"}),
        Engine(
            "vllm-all-cores",
            "vLLM (CPU) bfloat16, all cores",
            "run_vllm.py",
            "vllm",
            {"dtype": "bfloat16"},
            by_default=False,
            variables={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        ),
        Engine("onnxruntime", "plain onnxruntime", "run_onnxruntime.py", "onnx", {}, (EMBED,), True),
        Engine("fastembed", "fastembed", "run_fastembed.py", "onnx", {}, (EMBED,), True),
    )
}


def engines_called(names: Sequence[str] | None) -> list[Engine]:
    """Ours is always among them, and first; by default all that are worth the time."""
    if names is None:
        return [engine for engine in ENGINES.values() if engine.by_default]
    for name in names:
        if name not in ENGINES:
            raise BadRequest(f"no engine is called {name!r}; there are: {', '.join(ENGINES)}")
    return [engine for engine in ENGINES.values() if engine.name == OURS or engine.name in names]
