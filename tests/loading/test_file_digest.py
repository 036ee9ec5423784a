"""Digests of files, which are computed again only if a file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cenote.loading.file_digest import compute_sha256


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
