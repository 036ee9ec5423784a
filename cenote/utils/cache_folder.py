"""The folder for files that Cenote keeps between runs and can do without."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from cenote.utils.durable_files import replace_durably

CACHE_FOLDER_VARIABLE = "CENOTE_CACHE_DIR"


def find_cache_folder() -> Path:
    """Return $CENOTE_CACHE_DIR, or else the folder `cenote` in the user's cache folder; it may not exist."""
    if given := os.environ.get(CACHE_FOLDER_VARIABLE):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "cenote"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that readers see all of it or nothing, also after a loss of power."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        replace_durably(Path(name), path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def remove_oldest(folder: Path, pattern: str, max_files: int) -> None:
    """Keep the newest files that match the pattern."""
    with suppress(OSError):  # another process may remove the same files
        files = sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        for path in files[:-max_files]:
            path.unlink()
