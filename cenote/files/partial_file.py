"""FILE.part, the unfinished output, and FILE.part.json, the manifest of the command that writes it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cenote.errors import BadRequest
from cenote.utils.durable_files import replace_durably, sync_folder

SECRET_OPTIONS = ("hf_token",)


def make_manifest(source: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest of an output: its input and the options that its rows depend on, without secrets."""
    values = {name: value for name, value in options.items() if value is not None and name not in SECRET_OPTIONS}
    model = values.get("model")
    if isinstance(model, str) and Path(model).exists():
        values["model"] = str(Path(model).resolve())
    return {"input": source, **values}


class PartialFile:
    """The unfinished form of one output file."""

    def __init__(self, output: Path, manifest: Mapping[str, Any]) -> None:
        self.output = output
        self.path = output.with_name(output.name + ".part")
        self.manifest_path = output.with_name(output.name + ".part.json")
        self.manifest: dict[str, Any] = json.loads(json.dumps(manifest, default=str))  # as it will be read back
        self._lock_stream: IO[str] | None = None

    def check_resumable(self, *, overwrite: bool) -> bool:
        """Return whether the same command can be resumed; raise BadRequest if the files belong to another command."""
        if not self.output.parent.is_dir():
            raise BadRequest(f"the folder {self.output.parent} does not exist; create it first")
        if self.output.is_dir():
            raise BadRequest(f"{self.output} is a folder; --output must be a file")
        if self.output.exists() and not overwrite and not _is_empty_file(self.output):
            raise BadRequest(f"{self.output} exists; --overwrite replaces it")
        if not self.path.exists():
            return False
        difference = describe_difference(read_manifest(self.manifest_path), self.manifest)
        if difference is None:
            return True
        if not overwrite:
            raise BadRequest(
                f"{self.path} belongs to another command ({difference}); resume that one, or use --overwrite"
            )
        return False

    def open(self, *, fresh: bool) -> None:
        """Lock the file against other processes; `fresh` discards its contents."""
        self._lock_stream = open(self.manifest_path, "a+", encoding="utf-8")  # noqa: SIM115
        _lock_or_fail(self._lock_stream, self.path)
        if fresh:
            remove_path(self.path)
        self._lock_stream.truncate(0)
        json.dump(self.manifest, self._lock_stream)
        self._lock_stream.flush()
        os.fsync(self._lock_stream.fileno())  # without its manifest, an output cannot be resumed
        sync_folder(self.manifest_path.parent)

    def finish(self, path: Path) -> None:
        """Rename `path` to the output atomically and remove the other files.

        An empty output file is filled instead: its creator may hold it open, as `tempfile.NamedTemporaryFile` does.
        """
        if _is_empty_file(self.output):
            _copy_into(path, self.output)
        else:
            replace_durably(path, self.output)
        remove_path(self.path)
        self.manifest_path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._lock_stream is not None:
            self._lock_stream.close()
            self._lock_stream = None


def remove_path(path: Path) -> None:
    """Remove a file or a folder recursively, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_empty_file(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == 0


def _copy_into(source: Path, target: Path) -> None:
    """Copy a file into an existing empty one; if that fails, leave it empty."""
    with open(source, "rb") as stream, open(target, "r+b") as output:
        try:
            shutil.copyfileobj(stream, output)
            output.flush()
            os.fsync(output.fileno())
        except BaseException:
            os.truncate(target, 0)
            raise


def read_manifest(path: Path) -> dict[str, Any] | None:
    """Return the manifest; None if there is none, or it cannot be read."""
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def describe_difference(found: dict[str, Any] | None, expected: dict[str, Any]) -> str | None:
    """Describe the first difference of two manifests; None if they are equal."""
    if found is None:
        return "its .part.json cannot be read"
    for name in sorted(found.keys() | expected.keys()):
        then, now = found.get(name), expected.get(name)
        if then == now:
            continue
        if isinstance(then, dict) and isinstance(now, dict):
            return describe_difference(then, now)
        return f"{name} was {_shorten(then)}, now {_shorten(now)}"
    return None


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lock_or_fail(stream: IO[str], path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise BadRequest(f"{path} is being written by another process; wait for it, or use another --output") from None
