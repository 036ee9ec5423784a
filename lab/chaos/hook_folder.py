"""The folder through which the driver orders faults inside the processes of the server."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from lab.chaos.fault_hook import (
    CLOCK_FILE,
    DEVICE_FILE,
    ENGINE_FRAME_FILE,
    FOLDER_VARIABLE,
    FRONT_END_FRAME_FILE,
    HANG_FILE,
    OFFSET,
    POISON_FILE,
    SLOW_DISK_FILE,
)

# imported by every Python process at its start, if it is on the module search path
STARTUP_MODULE = "sitecustomize.py"
ROOT = str(Path(__file__).parents[2])  # the server imports the Cenote of this clone, and its laboratory
STARTUP_CODE = "from lab.chaos.fault_hook import install\n\ninstall()\n"


class HookFolder:
    def __init__(self, folder: Path, poison: Sequence[int], device_tokens_per_s: int | None = None) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / STARTUP_MODULE).write_text(STARTUP_CODE)
        (folder / POISON_FILE).write_text(" ".join(map(str, poison)))
        if device_tokens_per_s is not None:
            (folder / DEVICE_FILE).write_text(str(device_tokens_per_s))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that install the hooks in a server and in all processes that it starts."""
        search_path = [str(self.folder), ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(search_path), FOLDER_VARIABLE: str(self.folder)}

    def hang(self) -> AbstractContextManager[None]:
        """Batches do not finish meanwhile."""
        return self._file(HANG_FILE, b"")

    def slow_disk(self, seconds: float) -> AbstractContextManager[None]:
        """Each access of the result cache to the disk takes so long."""
        return self._file(SLOW_DISK_FILE, str(seconds).encode())

    def clock_offset(self, seconds: float) -> AbstractContextManager[None]:
        """The wall clock of all processes of the server differs by so much."""
        return self._file(CLOCK_FILE, OFFSET.pack(seconds))

    def order_bad_frame(self, garbage: str, *, to_engine: bool) -> None:
        """Send garbage before the next message between a front-end and the engine."""
        self._write(FRONT_END_FRAME_FILE if to_engine else ENGINE_FRAME_FILE, garbage.encode())

    @property
    def has_open_orders(self) -> bool:
        return any((self.folder / name).exists() for name in (FRONT_END_FRAME_FILE, ENGINE_FRAME_FILE))

    @contextmanager
    def _file(self, name: str, content: bytes) -> Iterator[None]:
        self._write(name, content)
        try:
            yield
        finally:
            (self.folder / name).unlink(missing_ok=True)

    def _write(self, name: str, content: bytes) -> None:
        """Write a file that appears with all its content at once."""
        temporary = self.folder / f"{name}.new"
        temporary.write_bytes(content)
        temporary.rename(self.folder / name)
