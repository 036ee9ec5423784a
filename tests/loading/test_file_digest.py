"""Digests of files, which are computed again only if a file has changed."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from cenote.loading import file_digest
from cenote.loading.file_digest import compute_sha256
from cenote.utils.cache_folder import CACHE_FOLDER_VARIABLE


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"first")
    assert compute_sha256(file) == hashlib.sha256(b"first").hexdigest()

    file.write_bytes(b"second")
    assert compute_sha256(file) == hashlib.sha256(b"second").hexdigest()

    changed_at = file.stat().st_mtime_ns
    other = tmp_path / "other"
    other.write_bytes(b"secone")
    os.utime(other, ns=(changed_at, changed_at))
    other.replace(file)
    assert compute_sha256(file) == hashlib.sha256(b"secone").hexdigest()

    file.write_bytes(b"sectwo")
    os.utime(file, ns=(changed_at, changed_at))
    assert compute_sha256(file) == hashlib.sha256(b"sectwo").hexdigest()


def test_a_file_that_does_not_change_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"first")
    expected = compute_sha256(file)
    monkeypatch.setattr(Path, "open", lambda *args, **options: pytest.fail("read again"))

    assert compute_sha256(file) == expected


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is large enough to be looked up, and a clock that says that it changed long ago."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(file_digest.MIN_STORED_BYTES))
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path / "cache"))
    later = time.time_ns() + 2 * file_digest.SETTLED_NS
    monkeypatch.setattr(file_digest.time, "time_ns", lambda: later)
    return path


def compute_in_another_process(path: Path) -> str:
    """Return the digest by another path of the file, of which this process remembers nothing."""
    return compute_sha256(path.parent / ".." / path.parent.name / path.name)


def test_the_digest_of_a_large_file_is_kept_for_other_processes(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = compute_sha256(weights)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("the file is read again"))

    assert compute_in_another_process(weights) == digest


def test_a_file_that_changes_has_another_digest(weights: Path) -> None:
    first = compute_sha256(weights)

    weights.write_bytes(b"1" * file_digest.MIN_STORED_BYTES)

    assert compute_in_another_process(weights) != first


def test_a_file_that_has_just_changed_is_not_remembered(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_digest.time, "time_ns", lambda: weights.stat().st_ctime_ns)

    compute_sha256(weights)

    assert not list((weights.parent / "cache").rglob("*-*"))


def test_a_damaged_entry_is_computed_again(weights: Path) -> None:
    digest = compute_sha256(weights)
    (entry,) = (weights.parent / "cache" / file_digest.FOLDER).iterdir()
    entry.write_bytes(b"\xff" + digest.encode()[1:])

    assert compute_in_another_process(weights) == digest
