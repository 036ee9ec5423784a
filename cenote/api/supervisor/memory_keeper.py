"""MemoryKeeper: unloads models to make room for others within the memory budget, and those that nobody uses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from cenote.api.admission.counters import Counters
from cenote.api.supervisor.engine_set import EngineSet
from cenote.api.supervisor.table_row import TableRow
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.errors import EngineStopped, NotReady
from cenote.loading.default_model import find_packaged
from cenote.protocol.names import find_local_folder
from cenote.utils.bounded_executor import BoundedExecutor

logger = logging.getLogger("cenote")

IDLE_CHECK_S = 0.5
RETRY_S = 0.05  # while other models are being loaded or unloaded
# of an engine process besides weights, before one has been measured: with torch, its libraries and buffers, or without.
# Which of the two a model on a CPU needs is known when it has loaded; most need no torch.
TORCH_PROCESS_BYTES = 450 * 1024**2
NATIVE_PROCESS_BYTES = 64 * 1024**2
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")  # the first that exist are read
DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2}
GPU_DEVICE_FILE = "/dev/nvidia0"


class Memory(NamedTuple):
    """Bytes of host memory, and of the memory of GPUs."""

    host: int = 0
    device: int = 0

    def plus(self, other: Memory) -> Memory:
        return Memory(self.host + other.host, self.device + other.device)


class LoadedModels(Protocol):
    """The table of models, and what starts and ends their engines."""

    rows: dict[str, TableRow]
    sets: list[EngineSet]
    counters: Counters

    def start_engines(self, entry: ModelEntry, /) -> EngineSet: ...

    async def unload_row(self, row: TableRow, /) -> None: ...


class MemoryKeeper:
    def __init__(self, models: LoadedModels, settings: ServerConfig) -> None:
        self.models = models
        self.limits = {"--memory-budget": settings.memory_budget, "--gpu-memory-budget": settings.gpu_memory_budget}
        self.is_limited = any(limit is not None for limit in self.limits.values())
        self.timeout_s = settings.replay_timeout_s
        self._lock = asyncio.Lock()  # one model at a time gets room
        self._thread = BoundedExecutor("memory", num_threads=1, max_waiting=1)  # folders may be large, or far away

    def has_room(self, row: TableRow) -> bool:
        """Whether a model fits besides those that are loaded at the start; the others are loaded on demand."""
        if not self.is_limited:
            return True
        sets = self.models.sets
        need = estimate(row.entry, sets)
        if len(self.models.rows) == 1:
            self._check_alone(row.name, need)
        used = measure_used(sets)
        if self._fits(used.plus(need)):
            return True
        logger.info(
            "the model %s is loaded on demand: with it, the models would use %s",
            row.name,
            self._describe(used.plus(need)),
        )
        return False

    async def start_in_budget(self, row: TableRow, entry: ModelEntry) -> EngineSet:
        """Start the engines of a row, under its lock, after others have been unloaded if they take its room."""
        if not self.is_limited:
            return self.models.start_engines(entry)
        async with self._lock:
            ends_at = time.monotonic() + self.timeout_s
            while True:
                sets = list(self.models.sets)
                need = await self._thread.run(estimate, entry, sets)
                self._check_alone(row.name, need)
                if self._fits((await self._thread.run(measure_used, sets)).plus(need)):
                    return self.models.start_engines(entry)
                await self._unload_one(row, ends_at)

    async def _unload_one(self, row: TableRow, ends_at: float) -> None:
        """Unload the model that has not been used for longest, or wait until one can be unloaded."""
        counters = self.models.counters
        loaded = [other for other in self.models.rows.values() if other is not row and other.engines is not None]
        candidates = [
            other
            for other in loaded
            if not other.entry.pinned and not other.lock.locked() and other.status in ("ready", "failed")
        ]
        if candidates:
            victim = max(candidates, key=lambda other: other.measure_idle_s(counters))
            logger.info("unloading the model %s to make room for %s", victim.name, row.name)
            await self.models.unload_row(victim)
        elif time.monotonic() > ends_at or all(other.entry.pinned for other in loaded):
            used = self._describe(measure_used(self.models.sets))
            raise NotReady(f"there is no room for the model {row.name}: others use {used}, and none can be unloaded")
        else:
            await asyncio.sleep(RETRY_S)

    async def unload_idle_models(self) -> None:
        """Unload models whose time without requests is over."""
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            for row in list(self.models.rows.values()):
                try:
                    await self._unload_if_idle(row)
                except Exception:  # of one model: the others are still unloaded, and this one perhaps the next time
                    logger.exception("the model %s could not be unloaded", row.name)

    async def _unload_if_idle(self, row: TableRow) -> None:
        keep_alive_s = row.entry.keep_alive_s
        if keep_alive_s is None or row.entry.pinned or row.status != "ready" or row.lock.locked():
            return
        if (idle_s := row.measure_idle_s(self.models.counters)) > keep_alive_s:
            logger.info("unloading the model %s: no request for %.1f s", row.name, idle_s)
            await self.models.unload_row(row)

    def _fits(self, memory: Memory) -> bool:
        return all(limit is None or used <= limit for limit, used in zip(self.limits.values(), memory, strict=True))

    def _check_alone(self, name: str, need: Memory) -> None:
        """Raise if a model does not fit even if no other is loaded."""
        for (flag, limit), used in zip(self.limits.items(), need, strict=True):
            if limit is not None and used > limit:
                raise EngineStopped(
                    f"the model {name} needs about {format_bytes(used)}, {flag} is {format_bytes(limit)}; raise it, or "
                    "choose a smaller dtype or model"
                )

    def _describe(self, used: Memory) -> str:
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
    has_torch = is_on_gpu(entry) or entry.config.runtime == "torch"
    process = max(0, min(besides)) if besides else TORCH_PROCESS_BYTES if has_torch else NATIVE_PROCESS_BYTES
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
    with suppress(OSError):  # a file is gone, or a link to one: the engine process says what is wrong with the folder
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
