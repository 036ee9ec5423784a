"""Table of engines that can be compared, with their worker script and environment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir, install_environment
from cenote.errors import BadRequest
from cenote.utils.progress import print_note

CENOTE = "cenote"
REFERENCE_ENGINE = "st-float32"  # outputs of the other engines are compared with its outputs
EMBED, TOKEN_EMBED, SCORE, TOKEN_CLASSIFY = "embed", "token_embed", "score", "token_classify"
EMBED_IMAGES = "embed_images"
ALL_TASKS = (EMBED, TOKEN_EMBED, SCORE, TOKEN_CLASSIFY)  # tasks on texts


@dataclass(frozen=True, slots=True)
class PeerEngine:
    name: str
    title: str
    script: str
    environment: str | None  # None: the environment of Cenote
    settings: Mapping[str, Any] = field(default_factory=dict)
    tasks: Sequence[str] = ALL_TASKS
    needs_export: bool = False  # needs the model as ONNX or OpenVINO files
    is_default: bool = True
    environment_variables: Mapping[str, str] = field(default_factory=dict)  # set for its process
    needs_pooling: bool = False  # does not read the pooling settings of the checkpoint

    @property
    def is_bfloat16(self) -> bool:
        return self.settings.get("dtype") == "bfloat16"

    def find_python(self, root: Path) -> Path | None:
        """Return the interpreter of the engine, or None if it is not installed."""
        return Path(sys.executable) if self.environment is None else ENVIRONMENTS[self.environment].find_python(root)


_TASKS_WITH_IMAGES = (*ALL_TASKS, EMBED_IMAGES)


def _cenote(name: str, title: str, *, is_default: bool = True, **settings: str) -> PeerEngine:
    return PeerEngine(name, title, "run_cenote.py", None, settings, _TASKS_WITH_IMAGES, is_default=is_default)


def _sentence_transformers(name: str, title: str, **settings: str) -> PeerEngine:
    title, script = f"sentence-transformers {title}", "run_sentence_transformers.py"
    if "backend" in settings:
        return PeerEngine(name, title, script, "openvino", settings, (EMBED, TOKEN_EMBED, SCORE), needs_export=True)
    return PeerEngine(name, title, script, "st", settings, _TASKS_WITH_IMAGES)


def _embedder(name: str, title: str, script: str, environment: str, **settings: str) -> PeerEngine:
    """Return an engine that computes embeddings only, of an exported model or of a file with these weights."""
    is_exported = environment == "onnx"
    return PeerEngine(name, title, script, environment, settings, (EMBED,), is_exported, needs_pooling=True)


ENGINES = {
    engine.name: engine
    for engine in (
        _cenote(CENOTE, "Cenote"),
        _cenote("cenote-int8", "Cenote int8", quantization="int8"),
        _cenote("cenote-float32", "Cenote float32", is_default=False, dtype="float32"),
        _sentence_transformers(REFERENCE_ENGINE, "float32", dtype="float32"),
        _sentence_transformers("st-bfloat16", "bfloat16", dtype="bfloat16"),
        _sentence_transformers("st-onnx", "ONNX", backend="onnx"),
        _sentence_transformers("st-openvino", "OpenVINO", backend="openvino"),
        PeerEngine("vllm", "vLLM (CPU) bfloat16", "run_vllm.py", "vllm", {"dtype": "bfloat16"}),
        PeerEngine(
            "vllm-all-cores",
            "vLLM (CPU) bfloat16, all cores",
            "run_vllm.py",
            "vllm",
            {"dtype": "bfloat16"},
            is_default=False,
            environment_variables={"VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        ),
        _embedder("onnxruntime", "plain onnxruntime", "run_onnxruntime.py", "onnx"),
        _embedder("fastembed", "fastembed", "run_fastembed.py", "onnx"),
        _embedder("llama-cpp", "llama.cpp float16", "run_llama_cpp.py", "llama-cpp", weights="f16"),
        _embedder("llama-cpp-q8", "llama.cpp int8 (Q8_0)", "run_llama_cpp.py", "llama-cpp", weights="q8_0"),
    )
}


def select_engines(names: Sequence[str] | None) -> list[PeerEngine]:
    """Return the named engines, Cenote always first; None selects the default engines."""
    if names is None:
        return [engine for engine in ENGINES.values() if engine.is_default]
    for name in names:
        if name not in ENGINES:
            raise BadRequest(f"unknown engine {name!r}; expected one of: {', '.join(ENGINES)}")
    return [engine for engine in ENGINES.values() if engine.name == CENOTE or engine.name in names]


def split_by_emulated(engines: Sequence[PeerEngine], *, has_bfloat16: bool) -> tuple[list[PeerEngine], list[str]]:
    """Return the engines that this machine has instructions for, and a line about the others."""
    kept = [engine for engine in engines if has_bfloat16 or not engine.is_bfloat16]
    emulated = ", ".join(engine.name for engine in engines if engine not in kept)
    reason = "this CPU has no bfloat16 instructions and would emulate them; `--peers` with their names runs them"
    return kept, [f"{emulated}: {reason}"] if emulated else []


def run_peers(args: argparse.Namespace) -> int:
    """`cenote bench peers`: list or install the environments of other engines."""
    root = Path(args.peers_dir) if args.peers_dir else default_peers_dir()
    names = args.names or list(ENVIRONMENTS)
    for name in names:
        if name not in ENVIRONMENTS:
            raise BadRequest(f"unknown peer environment {name!r}; expected one of: {', '.join(ENVIRONMENTS)}")
    if args.action == "install":
        for name in names:
            print_note(f"installing the peer environment {name} in {root / name}; takes minutes")
            install_environment(name, root)
    for name in names:
        python = ENVIRONMENTS[name].find_python(root)
        engines = ", ".join(engine.name for engine in ENGINES.values() if engine.environment == name)
        print(f"{name:<9} {'not installed' if python is None else python}  ({engines})")
    return 0
