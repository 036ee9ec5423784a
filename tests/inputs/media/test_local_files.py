"""Local files are read below the allowed directory only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cenote.errors import BadRequest
from cenote.inputs.media import local_files
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.local_files import DISABLED_MESSAGE, NOT_FOUND_MESSAGE
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, encode_image, make_image_source, noise

PNG = encode_image(noise(6, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return `allowed/` with images, symlinks and a pipe; images outside of it must not be readable."""
    outside = tmp_path_factory.mktemp("media")
    inside = outside / "allowed"
    (inside / "deep").mkdir(parents=True)
    for path in (outside / "secret.png", inside / "a.png", inside / "deep" / "ä b#1.png"):
        path.write_bytes(PNG)
    (outside / "allowed-too").mkdir()
    (outside / "allowed-too" / "b.png").write_bytes(PNG)
    (inside / "empty.png").touch()
    (inside / "outward.png").symlink_to(outside / "secret.png")
    (inside / "inward.png").symlink_to(inside / "a.png")
    (inside / "up").symlink_to(outside)
    (inside / "circle.png").symlink_to(inside / "circle.png")
    (inside / "environment.png").symlink_to("/proc/self/environ")
    os.mkfifo(inside / "pipe.png")
    return inside


@pytest.fixture(scope="module")
def loader(folder: Path) -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy(allowed_local_media_path=str(folder)))
    yield loader
    loader.close()


@pytest.mark.parametrize("name", ["a.png", "inward.png", "deep/ä b#1.png", "deep/../a.png", "./a.png"])
def test_a_file_below_the_allowed_directory_is_read(name: str, folder: Path, loader: MediaLoader) -> None:
    url = f"file://{folder}/{name}" if "#" not in name else (folder / name).as_uri()

    assert loader.load(make_image_source(url)).tobytes() == noise(6, 4).tobytes()


FORBIDDEN_URLS = [
    "file://{folder}/missing.png", "file://{folder}/../secret.png", "file://{folder}/deep/../../secret.png",
    "file://{folder}/%2e%2e/secret.png", "file://{folder}/%2E%2E%2Fsecret.png", "file://{folder}/..%2fsecret.png",
    "file://{folder}/%252e%252e/secret.png", "file://{folder}/outward.png", "file://{folder}/up/secret.png",
    "file://{folder}/up/allowed-too/b.png", "file://{folder}-too/b.png", "file://{folder}/a.png%00",
    "file://{folder}/%00a.png", "file://{folder}/a.png%00.txt", "file://{folder}/circle.png", "file://{folder}",
    "file://{folder}/", "file://{folder}/deep", "file://{folder}/pipe.png", "file://{folder}/environment.png",
    "file:///proc/self/environ", "file:///proc/self/fd/0", "file:///dev/zero", "file:///dev/stdin", "file:///etc/passwd",
    "file:///sys/kernel/mm/transparent_hugepage/enabled", "file://evil.example{folder}/a.png", "file:a.png", "file:",
    "file://{folder}\\a.png", "file://{folder}/a.png?x", "file://{folder}/a.png#x", "file://{folder}/\x00a.png",
    "file://{folder}/\na.png", "file://{folder}/" + "x" * 5000, "file://user@{folder}/a.png",
]  # fmt: skip


@pytest.mark.parametrize("url", FORBIDDEN_URLS, ids=lambda url: ascii(url[:60]))
def test_every_other_path_fails_with_the_same_message(url: str, folder: Path, loader: MediaLoader) -> None:
    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source(url.format(folder=folder)))

    assert caught.value.message == f"{PARAM_PATH}: {NOT_FOUND_MESSAGE}"


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/fd/0", "/dev/zero", "/dev", "/"])
def test_special_files_are_refused_even_if_every_path_is_allowed(path: str) -> None:
    loader = MediaLoader(MediaPolicy(allowed_local_media_path="/"))

    with pytest.raises(BadRequest, match=NOT_FOUND_MESSAGE):
        loader.load(make_image_source(f"file://{path}"))


def test_without_an_allowed_directory_file_urls_are_disabled(
    folder: Path, online: MediaLoader, offline: MediaLoader
) -> None:
    for loader in (online, offline):
        with pytest.raises(BadRequest) as caught:
            loader.load(make_image_source(f"file://{folder}/a.png"))
        assert caught.value.message == f"{PARAM_PATH}: {DISABLED_MESSAGE}"


def test_a_directory_replaced_by_a_symlink_after_the_check_is_not_followed(
    folder: Path, loader: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "swapped").mkdir()
    (folder / "swapped" / "secret.png").write_bytes(b"placeholder")
    original_open = os.open

    def swap_then_open(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "swapped":
            (folder / "swapped").rename(folder / "before")
            (folder / "swapped").symlink_to(folder.parent)
        return original_open(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(local_files.os, "open", swap_then_open)
    with pytest.raises(BadRequest, match=NOT_FOUND_MESSAGE):
        loader.load(make_image_source(f"file://{folder}/swapped/secret.png"))


def test_a_file_that_is_too_large_or_empty_is_refused_with_the_reason(folder: Path, loader: MediaLoader) -> None:
    with pytest.raises(BadRequest, match="empty, 0 bytes"):
        loader.load(make_image_source(f"file://{folder}/empty.png"))
    small = MediaLoader(MediaPolicy(allowed_local_media_path=str(folder), max_image_bytes=50))
    with pytest.raises(BadRequest, match=f"{len(PNG)} bytes, the limit is 50"):
        small.load(make_image_source(f"file://{folder}/a.png"))


def test_an_offline_caller_may_open_its_own_files(
    folder: Path, offline: MediaLoader, online: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for source in (folder / "a.png", str(folder / "a.png"), "a.png", Path("deep/../outward.png")):
        assert offline.load(make_image_source(source)).size == (6, 4)
        with pytest.raises(BadRequest, match="where the server allows it"):
            online.load(make_image_source(source))
    with pytest.raises(BadRequest, match="no such image file"):
        offline.load(make_image_source("missing.png"))


def test_an_offline_caller_with_an_allowed_path_stays_below_it(folder: Path) -> None:
    loader = MediaLoader(MediaPolicy(allowed_local_media_path=str(folder), trust_caller=True))

    assert loader.load(make_image_source(folder / "a.png")).size == (6, 4)
    with pytest.raises(BadRequest, match=NOT_FOUND_MESSAGE):
        loader.load(make_image_source(folder.parent / "secret.png"))
    loader.close()
