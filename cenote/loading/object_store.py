"""Download the folder of a model from S3, or a store that is compatible with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from cenote.errors import LoadError
from cenote.utils.cache_folder import find_cache_folder, write_atomically
from cenote.utils.durable_files import replace_durably
from cenote.utils.file_lock import lock_file
from cenote.utils.install_commands import install_command

S3_SCHEME = "s3://"
S3_URI = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])/(?P<prefix>[^?#]*[^/?#])/?")
MANIFEST_FILE = ".etags.json"
LOCK_FILE = ".lock"
# without a change of the files, a process that downloads the same model is held to be stopped
LOCK_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object of the bucket; `name` is its path in the folder of the model."""

    key: str
    name: str
    size: int
    etag: str


def download_from_s3(uri: str, patterns: Sequence[str], ignored: Sequence[str], fallback: Sequence[str]) -> Path:
    """Return a local copy of the folder `s3://bucket/path`; objects that did not change are not downloaded again.

    `fallback` patterns are for folders in which nothing matches the last of the patterns. Region, endpoint and
    credentials come from the usual variables and files of AWS (AWS_ENDPOINT_URL for other stores).
    """
    match = S3_URI.fullmatch(uri)
    if match is None:
        raise LoadError(f"invalid model {uri!r}; expected s3://bucket/path of a folder with config.json")
    bucket, prefix = match["bucket"], match["prefix"]
    if any(part in ("", ".", "..") for part in prefix.split("/")) or "\0" in prefix:
        raise LoadError(f"invalid model {uri!r}: a part of the path is empty, '.' or '..'; expected s3://bucket/path")
    client = _make_client()
    try:
        found = [item for item in _list_objects(client, bucket, prefix) if not _matches(item.name, ignored)]
        if not found:
            raise LoadError(f"{uri} has no objects; expected config.json, tokenizer.json and model.safetensors there")
        if not any(fnmatch(item.name, patterns[-1]) for item in found):
            patterns = [*patterns, *fallback]
        folder = _find_local_folder(bucket, prefix)
        with _lock(folder):
            _remove_deleted(folder, {item.name for item in found})
            _download_changed(client, bucket, folder, [item for item in found if _matches(item.name, patterns)])
    except OSError as error:
        raise LoadError(f"{uri} cannot be stored below {find_cache_folder()}: {error}; set CENOTE_CACHE_DIR") from error
    except _client_errors() as error:
        raise LoadError(f"{uri} cannot be read: {error}; check the name, AWS_ENDPOINT_URL and credentials") from error
    return folder


def _find_local_folder(bucket: str, prefix: str) -> Path:
    """Return the folder of the copy; raise if a link leads out of the cache."""
    cache = (find_cache_folder() / "s3").resolve()
    folder = (cache / bucket / prefix).resolve()
    if not folder.is_relative_to(cache / bucket):
        raise LoadError(f"s3://{bucket}/{prefix} would be stored in {folder}, outside {cache}; remove the link there")
    return folder


def _make_client() -> Any:
    try:
        import boto3
    except ImportError:
        raise LoadError(f"models from s3:// need boto3: {install_command('s3')}") from None
    return boto3.session.Session().client("s3")  # the default session would keep credentials that have changed


def _client_errors() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError

    return Boto3Error, BotoCoreError, ClientError


def _list_objects(client: Any, bucket: str, prefix: str) -> Iterator[StoredObject]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for entry in page.get("Contents", ()):
            name = entry["Key"].removeprefix(f"{prefix}/")
            if not name or name.endswith("/") or name in (MANIFEST_FILE, LOCK_FILE):  # consoles create folders/
                continue
            if name.startswith("/") or ".." in PurePosixPath(name).parts:
                raise LoadError(f"s3://{bucket}/{entry['Key']} is outside the model folder; rename the object")
            yield StoredObject(entry["Key"], name, entry["Size"], entry["ETag"].strip('"'))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Replicas that start together download once."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_file(folder / LOCK_FILE, LOCK_TIMEOUT_S, lambda: _read_progress(folder)):
        yield


def _read_progress(folder: Path) -> object:
    """Return what changes while another process downloads."""
    progress = []
    for path in folder.rglob("*"):
        with suppress(OSError):  # renamed meanwhile
            stat = path.stat()
            progress.append((str(path), stat.st_size, stat.st_mtime_ns))
    return sorted(progress)


def _remove_deleted(folder: Path, names: set[str]) -> None:
    etags = _read_manifest(folder)
    for name in etags.keys() - names:
        (folder / name).unlink(missing_ok=True)
    if etags.keys() - names:
        kept = {name: etag for name, etag in etags.items() if name in names}
        write_atomically(folder / MANIFEST_FILE, json.dumps(kept).encode())


def _download_changed(client: Any, bucket: str, folder: Path, objects: Sequence[StoredObject]) -> None:
    etags = _read_manifest(folder)
    for item in objects:
        path = folder / item.name
        if etags.get(item.name) == item.etag and path.is_file() and path.stat().st_size == item.size:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        client.download_file(bucket, item.key, str(part))
        replace_durably(part, path)
        etags[item.name] = item.etag
        write_atomically(folder / MANIFEST_FILE, json.dumps(etags).encode())


def _read_manifest(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads((folder / MANIFEST_FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}  # everything is downloaded again
