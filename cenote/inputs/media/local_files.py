"""Read local image files: only regular files, and only below the allowed directory."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from urllib.parse import unquote_to_bytes

from cenote.errors import BadRequest
from cenote.inputs.media.memory_budget import BudgetLease

DISABLED_MESSAGE = "file URLs are disabled; --allowed-local-media-path sets the directory that they may refer to"
# the same message for every reason: clients must not learn which files exist
NOT_FOUND_MESSAGE = "no such image file below the directory of --allowed-local-media-path"
_FILE_URL = re.compile(r"file:(?://(?:localhost)?)?(?P<path>/[^?#\\]*)", re.IGNORECASE)
_DIRECTORY_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC  # opening a pipe must not block
_SYSTEM_DIRECTORIES = (Path("/proc"), Path("/sys"))  # regular files according to stat(), but not on disk


def read_file_url(url: str, root: str | None, max_bytes: int, lease: BudgetLease) -> bytes:
    if root is None:
        raise BadRequest(DISABLED_MESSAGE)
    match = _FILE_URL.fullmatch(url)
    if match is None or not url.isprintable():
        raise BadRequest(NOT_FOUND_MESSAGE)
    return read_file(os.fsdecode(unquote_to_bytes(match["path"])), root, max_bytes, lease)


def read_file(path: str | os.PathLike[str], root: str | None, max_bytes: int, lease: BudgetLease) -> bytes:
    """Return the bytes of a file; without a root directory, any regular file is allowed."""
    message = NOT_FOUND_MESSAGE if root is not None else "no such image file, or not a regular file"
    try:
        handle = _open_beneath(Path(root or "/"), Path(path))
    except (OSError, ValueError, RuntimeError):  # ValueError: NUL in the path, RuntimeError: symlink loop
        raise BadRequest(message) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise BadRequest(message)
        if status.st_size > max_bytes:
            raise BadRequest(f"the image file has {status.st_size:,} bytes, the limit is {max_bytes:,}")
        lease.grow(status.st_size)
        with open(handle, "rb", closefd=False) as file:
            return file.read(status.st_size)  # no more than reserved, if the file has grown
    except OSError:
        raise BadRequest(message) from None
    finally:
        os.close(handle)


def _open_beneath(root: Path, path: Path) -> int:
    """Open the resolved path component by component without following symlinks, which may have changed since."""
    root, path = root.resolve(strict=True), path.resolve(strict=True)
    if any(path.is_relative_to(directory) for directory in _SYSTEM_DIRECTORIES):
        raise FileNotFoundError
    *directories, name = path.relative_to(root).parts or ("",)
    handle = os.open(root, _DIRECTORY_FLAGS)
    try:
        for directory in directories:
            outer, handle = handle, os.open(directory, _DIRECTORY_FLAGS, dir_fd=handle)
            os.close(outer)
        return os.open(name, _FILE_FLAGS, dir_fd=handle)
    finally:
        os.close(handle)
