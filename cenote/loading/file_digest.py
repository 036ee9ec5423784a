"""SHA-256 of whole files, computed once while a file does not change, also by other processes of this machine."""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cenote.utils.cache_folder import find_cache_folder, remove_oldest, write_atomically

FOLDER, MAX_FILES = "digests", 256
MIN_STORED_BYTES = 4 << 20  # a smaller file is read faster than it is looked up
# a file that changed so recently may change again without another time of its last change
SETTLED_NS = 2_000_000_000
DIGEST = re.compile("[0-9a-f]{64}")

Identity = tuple[int, int, int, int]  # size, time of the last change, device and inode


def compute_sha256(path: Path) -> str:
    """Return the digest of a file as hexadecimal digits; raises OSError if it cannot be read."""
    return _compute(path, _identify(path))


def _identify(path: Path) -> Identity:
    status = path.stat()
    # not the time of the last modification, which programs that copy files set
    return status.st_size, status.st_ctime_ns, status.st_dev, status.st_ino


@lru_cache(maxsize=256)
def _compute(path: Path, identity: Identity) -> str:
    size, changed_at, *_ = identity
    stored = find_cache_folder() / FOLDER / "-".join(map(str, identity)) if size >= MIN_STORED_BYTES else None
    if stored is not None and (digest := _read(stored)) is not None:
        return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    is_settled = time.time_ns() - changed_at > SETTLED_NS
    if stored is not None and is_settled and _identify(path) == identity:
        with suppress(OSError):  # a full or read-only disk only makes the next start slower
            write_atomically(stored, digest.encode())
            remove_oldest(stored.parent, "*", MAX_FILES)
    return digest


def _read(stored: Path) -> str | None:
    with suppress(OSError):
        text = stored.read_bytes().decode(errors="replace")
        return text if DIGEST.fullmatch(text) else None
    return None
