"""SHA-256 of whole files, computed once in a process while a file does not change."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def compute_sha256(path: Path) -> str:
    """Return the digest of a file as hexadecimal digits; raises OSError if it cannot be read."""
    status = path.stat()
    # not the time of the last modification, which programs that copy files set
    return _compute(path, status.st_size, status.st_ctime_ns, (status.st_dev, status.st_ino))


@lru_cache(maxsize=256)
def _compute(path: Path, size: int, changed_at: int, inode: tuple[int, int]) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
