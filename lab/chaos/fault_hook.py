"""What runs inside the processes of a server under test: faults that cannot be caused from outside.

`hook_folder.py` makes every Python process of the server import this module at its start. It replaces functions of
modules after their import, and does nothing until a file in the folder orders a fault.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER_VARIABLE = "CHAOS_HOOK_FOLDER"  # not CENOTE_*: the server refuses unknown variables of that prefix
POISON_FILE, HANG_FILE, CLOCK_FILE, SLOW_DISK_FILE = "poison", "hang", "clock", "slow-disk"
DEVICE_FILE = "device-tokens-per-s"
ENGINE_FRAME_FILE, FRONT_END_FRAME_FILE = "bad-frame-to-front-end", "bad-frame-to-engine"
# the second one forks processes that become the first
ENGINE_MODULES = {"cenote.api.engine_process", "cenote.api.engine_launcher"}
OFFSET = struct.Struct("<d")
POLL_S = 0.05
# garbage goes before a message of these kinds, which travel only between front-ends and the engine
TO_ENGINE, TO_FRONT_END = "TokenBatch", "TokenResults"
# a frame whose message is not msgpack, and no frame at all
UNDECODABLE, NOT_A_FRAME = "undecodable", "not-a-frame"
GARBAGE = (UNDECODABLE, NOT_A_FRAME)

Patch = Callable[[ModuleType, Path], None]


def install() -> None:
    """Prepare all faults; called when the interpreter starts."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    shift_clock(Path(folder))
    patches: dict[str, Patch] = {"cenote.api.wire.channel": corrupt_frames}
    if ENGINE_MODULES & set(sys.orig_argv):
        patches |= {
            "cenote.engine.execution.executor_factory": fail_batches,
            "cenote.cache.disk_cache": slow_down_disk,
        }
    sys.meta_path.insert(0, PatchingFinder(patches, Path(folder)))


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Call a function with a module right after the module was executed."""

    def __init__(self, patches: dict[str, Patch], folder: Path) -> None:
        self.patches = patches
        self.folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self.patches.pop(fullname, None)  # removed: the search below must not find this entry again
        if patch is None:
            return None
        spec = importlib.util.find_spec(fullname)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module, self.folder)

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def shift_clock(folder: Path) -> None:
    """Make `time.time` jump by the seconds in the clock file; monotonic clocks go on."""
    path, real_time = folder / CLOCK_FILE, time.time
    cached = (0.0, 0.0)  # monotonic time of the next look, offset

    def shifted_time() -> float:
        nonlocal cached
        now = time.monotonic()
        if now >= cached[0]:
            offset = 0.0
            with suppress(OSError, struct.error):
                offset = OFFSET.unpack(path.read_bytes())[0]
            cached = (now + POLL_S, offset)
        return real_time() + cached[1]

    time.time = shifted_time


def fail_batches(module: ModuleType, folder: Path) -> None:
    """Let batches with the poison crash the process in native code, and batches hang while the hang file is there.

    If the device file says how many tokens per second a device computes, every batch takes as long as on that device.
    """
    make_executor = module.make_executor
    hang_path = folder / HANG_FILE

    def make_failing_executor(*args: Any, **options: Any) -> Any:
        executor = make_executor(*args, **options)
        start = executor.start
        poison = read_numbers(folder / POISON_FILE)
        tokens_per_s = read_numbers(folder / DEVICE_FILE)

        def start_or_fail(batch: Any) -> Any:
            if poison and contains_run(batch.inputs.token_ids.tolist(), poison):
                ctypes.string_at(0)  # a segmentation fault
            while hang_path.exists():
                time.sleep(POLL_S)
            if tokens_per_s:
                time.sleep(batch.num_tokens / tokens_per_s[0])
            return start(batch)

        executor.start = start_or_fail
        return executor

    module.make_executor = make_failing_executor  # type: ignore[attr-defined]


def slow_down_disk(module: ModuleType, folder: Path) -> None:
    """Let every read and every transaction of the cache on disk take as long as the slow-disk file says."""
    path, cache_class = folder / SLOW_DISK_FILE, module.DiskCache

    def wait() -> None:
        with suppress(OSError, ValueError):
            time.sleep(float(path.read_text()))

    def delay(function: Callable[..., Any]) -> Callable[..., Any]:
        def delayed(*args: Any, **options: Any) -> Any:
            wait()
            return function(*args, **options)

        return delayed

    cache_class._query = delay(cache_class._query)
    cache_class._write = delay(cache_class._write)


def corrupt_frames(module: ModuleType, folder: Path) -> None:
    """Write garbage before the next message to the other process of a link, once per order."""
    channel_class = module.Channel
    send = channel_class.send
    header = module.FRAME_HEADER.pack(module.WIRE_VERSION, module.MESSAGE, 8, 0, 0)
    contents = {UNDECODABLE: header + b"\xc1" * 8, NOT_A_FRAME: b"\xff" * 64}
    orders = {
        TO_ENGINE: folder / FRONT_END_FRAME_FILE,
        TO_FRONT_END: folder / ENGINE_FRAME_FILE,
    }

    def send_garbage_first(channel: Any, message: Any, *args: Any, **options: Any) -> None:
        path = orders.get(type(message).__name__)
        if path is not None and channel.is_open and (garbage := take_order(path)) is not None:
            channel._writer.write((contents[garbage],))
        send(channel, message, *args, **options)

    channel_class.send = send_garbage_first


def take_order(path: Path) -> str | None:
    """Return what the file says and remove it; None if there is none or another process has taken it."""
    try:
        order = path.read_text()
        path.unlink()
    except OSError:
        return None
    return order


def read_numbers(path: Path) -> list[int]:
    try:
        return [int(word) for word in path.read_text().split()]
    except OSError:
        return []


def contains_run(token_ids: list[int], run: list[int]) -> bool:
    """Return whether `run` occurs in `token_ids` without gaps."""
    start = -1
    while True:
        try:
            start = token_ids.index(run[0], start + 1)
        except ValueError:
            return False
        if token_ids[start : start + len(run)] == run:
            return True
