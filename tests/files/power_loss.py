"""What a disk keeps when the machine loses its power at any moment, while Python writes files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Files = dict[str, bytes]  # content by path in the folder


class RecordingDisk:
    """Records what a folder would hold if the power failed, or the process were killed, before each call that matters.

    The content of a file is on the disk once it was synced. A name may reach the disk at any time: a state is
    recorded with the names that were synced with their folder, and one with all of them.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.states: list[Files] = []
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[Path, dict[str, int]] = {}  # by folder
        self._handles: list[int] = []  # so that no inode is used for another file
        for name in ("fsync", "replace", "unlink"):
            monkeypatch.setattr(os, name, self._record_before(getattr(os, name)))

    def close(self) -> None:
        for handle in self._handles:
            os.close(handle)

    def record(self) -> None:
        current = {path: path.stat().st_ino for path in sorted(self.folder.rglob("*")) if path.is_file()}
        killed = {path: path.read_bytes() for path in current}
        all_names = {path: self._contents.get(inode, b"") for path, inode in current.items()}
        synced = {
            folder / name: self._contents.get(inode, b"")
            for folder, inodes in self._names.items()
            for name, inode in inodes.items()
        }
        for state in (killed, all_names, synced):
            files = {path.relative_to(self.folder).as_posix(): content for path, content in state.items()}
            if files not in self.states:
                self.states.append(files)

    def _record_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.record()
            result = function(*args, **options)
            if function.__name__ == "fsync":
                self._sync(args[0])
            return result

        return call

    def _sync(self, handle: int) -> None:
        path, status = Path(os.readlink(f"/proc/self/fd/{handle}")), os.fstat(handle)
        self._handles.append(os.dup(handle))
        if stat.S_ISDIR(status.st_mode):
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path) if entry.is_file()}
        else:
            self._contents[status.st_ino] = path.read_bytes()


def write_files(folder: Path, files: Files) -> Path:
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
