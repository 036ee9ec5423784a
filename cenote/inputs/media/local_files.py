"""Image files on this machine: only regular ones, and only beneath the allowed folder."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cenote.errors import BadRequest
from cenote.inputs.media.memory_budget import BudgetLease

DISABLED_MESSAGE = "file URLs are off; --allowed-local-media-path names the folder that they may point into"
# one text for all reasons: whoever asks must not learn which files there are
NOT_FOUND_MESSAGE = "there is no such image file beneath the folder of --allowed-local-media-path"
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/[^?#\\]*)", re.IGNORECASE)
_DIRECTORY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # a pipe must not make us wait
_SYSTEM_DIRECTORIES = (Path("/proc"), Path("/sys"))  # regular by their looks alone


def read_file_url(url: str, root: str | None, max_bytes: int, lease: BudgetLease) -> bytes:
    if root is None:
        raise BadRequest(DISABLED_MESSAGE)
    match = _FILE_URL.fullmatch(url)
    if match is None or not url.isprintable():
        raise BadRequest(NOT_FOUND_MESSAGE)
    return read_file(os.fsdecode(unquote_to_bytes(match["path"])), root, max_bytes, lease)


def read_file(path: str | os.PathLike[str], root: str | None, max_bytes: int, lease: BudgetLease) -> bytes:
    """The bytes of a file, wherever it is if no folder is named."""
    refusal = NOT_FOUND_MESSAGE if root is not None else "there is no such image file, or it is not a regular file"
    try:
        handle = _open_beneath(Path(root or "/"), Path(path))
    except (OSError, ValueError, RuntimeError):  # ValueError: a NUL inside, RuntimeError: links in a circle
        raise BadRequest(refusal) from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise BadRequest(refusal)
        if found.st_size > max_bytes:
            raise BadRequest(f"the image file has {found.st_size:,} bytes, at most {max_bytes:,} are read")
        lease.grow(found.st_size)
        with open(handle, "rb", closefd=False) as file:
            return file.read(found.st_size)  # not more: it may have grown since
    except OSError:
        raise BadRequest(refusal) from None
    finally:
        os.close(handle)


def _open_beneath(root: Path, path: Path) -> int:
    """Open a file along the way that was checked: no step follows a link, so none that came since leads elsewhere."""
    root, path = root.resolve(strict=True), path.resolve(strict=True)
    if any(path.is_relative_to(folder) for folder in _SYSTEM_DIRECTORIES):
        raise FileNotFoundError
    *folders, name = path.relative_to(root).parts or ("",)
    handle = os.open(root, _DIRECTORY_FLAGS)
    try:
        for folder in folders:
            outer, handle = handle, os.open(folder, _DIRECTORY_FLAGS, dir_fd=handle)
            os.close(outer)
        return os.open(name, _FILE_FLAGS, dir_fd=handle)
    finally:
        os.close(handle)
