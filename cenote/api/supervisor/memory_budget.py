"""Memory budget: what a model will need, what the loaded ones use, and how much that may be."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cenote.api.supervisor.engine_set import EngineSet
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.errors import EngineStopped
from cenote.loading.default_model import find_packaged
from cenote.protocol.names import find_local_folder

# of an engine process besides weights, before one has been measured: torch, its libraries and buffers
DEFAULT_PROCESS_BYTES = 450 * 1024**2
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")  # the first that exist are read
DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
GPU_DEVICE_FILE = "/dev/nvidia0"


class Memory(NamedTuple):
    """Bytes of host memory, and of the memory of GPUs."""

    host: int = 0
    device: int = 0

    def plus(self, other: Memory) -> Memory:
        return Memory(self.host + other.host, self.device + other.device)


class MemoryBudget:
    def __init__(self, settings: ServerConfig) -> None:
        self.limits = {"--memory-budget": settings.memory_budget, "--gpu-memory-budget": settings.gpu_memory_budget}

    @property
    def is_limited(self) -> bool:
        return any(limit is not None for limit in self.limits.values())

    def fits(self, memory: Memory) -> bool:
        return all(limit is None or used <= limit for limit, used in zip(self.limits.values(), memory, strict=True))

    def check_alone(self, name: str, need: Memory) -> None:
        """Raise if a model does not fit even if no other is loaded."""
        for (flag, limit), used in zip(self.limits.items(), need, strict=True):
            if limit is not None and used > limit:
                raise EngineStopped(
                    f"the model {name} needs about {format_bytes(used)}, {flag} is {format_bytes(limit)}; raise it, or "
                    "choose a smaller dtype or model"
                )

    def describe(self, used: Memory) -> str:
        parts = [
            f"{format_bytes(bytes_)} of {format_bytes(limit)} ({flag})"
            for (flag, limit), bytes_ in zip(self.limits.items(), used, strict=True)
            if limit is not None
        ]
        return ", ".join(parts)


def measure_used(sets: Iterable[EngineSet]) -> Memory:
    """Return what the engines use: as measured once they are loaded, as estimated before."""
    total = Memory()
    sets = list(sets)
    for engines in sets:
        total = total.plus(measure(engines) if engines.model_info else estimate(engines.entry, sets))
    return total


def measure(engines: EngineSet) -> Memory:
    device = sum(child.device_bytes for child in engines.children)
    return Memory(engines.measure_memory() - device, device)


def estimate(entry: ModelEntry, sets: Iterable[EngineSet]) -> Memory:
    """Return what a model will use: its weights, and as much besides as the loaded ones."""
    weights = estimate_weights(entry)
    besides = [
        measure(engines).host // len(engines.children) - estimate_weights(engines.entry)
        for engines in sets
        if engines.model_info and not is_on_gpu(engines.entry)
    ]
    process = max(0, min(besides)) if besides else DEFAULT_PROCESS_BYTES
    if is_on_gpu(entry):
        return Memory(entry.replicas * process, entry.replicas * weights)
    return Memory(entry.replicas * (process + weights))


def is_on_gpu(entry: ModelEntry) -> bool:
    device = entry.config.device
    return os.path.exists(GPU_DEVICE_FILE) if device is None else device.startswith("cuda")


def estimate_weights(entry: ModelEntry) -> int:
    """Return the bytes of the weights in memory, from the sizes of their files; 0 if they are not on this machine."""
    if (folder := find_folder(entry)) is None:
        return 0
    for pattern in WEIGHT_FILES:
        files = [file for depth in ("", "*/") for file in folder.glob(depth + pattern)]
        if sizes := [file.stat().st_size for file in files]:
            return round(sum(sizes) * find_dtype_factor(entry, folder))
    return 0


def find_dtype_factor(entry: ModelEntry, folder: Path) -> float:
    """Return by how much the weights grow when they are loaded, where that is known."""
    dtype = None
    with suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_bytes())
        dtype = config.get("dtype") or config.get("torch_dtype")
    wanted = DTYPE_BYTES.get(entry.config.dtype)
    stored = DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None
    return wanted / stored if wanted and stored else 1.0


def find_folder(entry: ModelEntry) -> Path | None:
    """Return the folder of a model if it is on this machine."""
    source = entry.source
    if (folder := find_local_folder(source)) is not None:
        return folder
    if (packaged := find_packaged(source)) is not None:
        return packaged
    from huggingface_hub import try_to_load_from_cache

    with suppress(Exception):  # not a hub name
        config = try_to_load_from_cache(
            source, "config.json", cache_dir=entry.config.hub.cache_dir, revision=entry.config.revision
        )
        return Path(config).parent if isinstance(config, str) else None
    return None


def format_bytes(count: int) -> str:
    return f"{count / 1024**3:.2f} GiB"
