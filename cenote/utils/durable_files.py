"""Files whose existence means that they are complete, also after the machine has lost its power.

A rename may reach the disk before the content of the file does, and what was reported as done may be lost with it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

# file systems that cannot sync a folder, such as some over the network
UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)


def replace_durably(source: Path, target: Path) -> None:
    """Rename a complete file; when this returns, the disk has the new name and the whole content."""
    sync_file(source)
    os.replace(source, target)
    sync_folder(target.parent)


def sync_file(path: Path) -> None:
    """Write the content of a file to the disk."""
    with open(path, "rb" if os.name != "nt" else "r+b") as stream:
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Write the names of the files in a folder to the disk."""
    if os.name == "nt":  # no folder can be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(handle)
