"""A file system of a few megabytes, where the machine permits to mount one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DISK_MIB = 8


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """Create the folder, as a file system of its own if possible; yield whether it is one."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(folder)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", str(folder)], capture_output=True, check=False)
