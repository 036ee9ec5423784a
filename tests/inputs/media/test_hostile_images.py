"""Hostile images from many threads: each is refused or decoded, within bounded memory."""

from __future__ import annotations

import io
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import PIL.Image
import pytest

from cenote.errors import BadRequest
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.pixels import convert_to_rgb, exif_transpose
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, encode_image, make_image_source, noise
from tests.inputs.media.hostile_images import SIDE, hostile_images

NUM_THREADS = 16
MAX_GROWTH = 600 * 1000**2
HARMLESS = {  # large or unusual, but valid
    "png at the limit", "png one column", "png with odd exif", "png with too many rows", "png with a negative chunk",
    "png without a palette", "jpeg progressive at the limit, cut", "jpeg exif in a circle", "jpeg exif without end",
    "jpeg exif of nothing", "jpeg odd picture index", "jpeg one column", "jpeg turned into noise",
    "webp canvas at the limit", "gif at the limit",
}  # fmt: skip


def resident_bytes() -> int:
    """Resident memory of this process and its children."""
    processes = [Path("/proc/self")]
    command = (processes[0] / "cmdline").read_bytes()
    for task in (processes[0] / "task").iterdir():
        with suppress(OSError):  # the thread or the child has exited
            children = [Path("/proc") / pid for pid in (task / "children").read_text().split()]
            # between fork and exec a child has the command of this process, and shares all its memory with it
            processes += [child for child in children if (child / "cmdline").read_bytes() != command]
    num_pages = 0
    for process in processes:
        with suppress(OSError, IndexError):
            num_pages += int((process / "statm").read_text().split()[1])
    return num_pages * os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Sample the resident memory of this process and its children, and keep the maximum."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(0.005):
            self.peak_bytes = max(self.peak_bytes, resident_bytes())


@pytest.fixture(scope="module")
def images() -> dict[str, bytes]:
    return hostile_images()


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


def test_concurrent_decompression_bombs_use_bounded_memory(images: dict[str, bytes], loader: MediaLoader) -> None:
    assert len(images) >= 64
    good = encode_image(noise(64, 48))
    jobs = [job for name, file in images.items() for job in ((name, file), ("good", good))]

    def load(job: tuple[str, bytes]) -> tuple[str, str]:
        name, file = job
        try:
            image = loader.load(make_image_source(file))
        except BadRequest as error:  # anything else fails the test
            return name, error.message
        if name == "good":
            assert image.tobytes() == noise(64, 48).tobytes()
        assert image.mode == "RGB" and image.width * image.height <= SIDE * SIDE
        return name, "decoded"

    before = resident_bytes()
    started = time.monotonic()
    with PeakMemory() as peak, ThreadPoolExecutor(NUM_THREADS) as threads:
        outcomes = list(threads.map(load, jobs))
    print(f"memory grew by {(peak.peak_bytes - before) / 1e6:.0f} MB, in {time.monotonic() - started:.1f} s")

    assert peak.peak_bytes - before < MAX_GROWTH
    assert {text for name, text in outcomes if name == "good"} == {"decoded"}
    refused = {name: text for name, text in outcomes if text != "decoded"}
    assert set(images) - set(refused) <= HARMLESS
    assert all(text.startswith(f"{PARAM_PATH}: the ") for text in refused.values())
    assert not [text for text in refused.values() if "0x" in text or "PIL" in text or "Error" in text]


@pytest.mark.parametrize(
    "name, message",
    [
        ("png huge", "60,000 x 60,000 pixels, 3,600,000,000 in total; the limit is 40,000,000"),
        ("jpeg huge", "65,535 x 65,535 pixels"),
        ("webp canvas huge", "16,777,216 x 16,777,216 pixels"),
        ("gif huge", "65,535 x 65,535 pixels"),
        ("gif frame outside", "65,000 x 65,000 pixels"),
        ("png with many frames", "100,000 frames or more; the limit is 64"),
        ("gif with many frames", "65 frames or more; the limit is 64"),
        ("webp with many frames", "65 frames or more"),
        ("png cut", "the PNG image of 16 x 16 pixels is corrupt or truncated, in a file of"),
        ("png text bomb", "the PNG image of 4 x 4 pixels is corrupt"),
        ("tiff", "of the unsupported format TIFF; supported: PNG, JPEG, WebP and GIF"),
        ("jpeg 2000", "of the unsupported format JPEG 2000"),
        ("avif", "an AVIF or HEIC image, or a video"),
        ("nothing", "the image is empty, 0 bytes"),
    ],
)
def test_a_decompression_bomb_is_refused_with_the_reason(
    name: str, message: str, images: dict[str, bytes], loader: MediaLoader
) -> None:
    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source(images[name]))

    assert message in caught.value.message


def test_a_damaged_file_is_decoded_or_refused_as_by_pillow(loader: MediaLoader) -> None:
    random = Random(0)
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    files = [(kind, encode_image(noise(33, 21), kind, exif=exif)) for kind in ("PNG", "JPEG", "WEBP", "GIF")]
    outcomes = set()
    for kind, file in files * 40:
        damaged = bytearray(file)
        for _ in range(random.choice((0, 1, 2, 8))):
            damaged[random.randrange(random.choice((60, len(damaged))))] = random.choice(
                (0, 255, random.randrange(256))
            )

        expected = decode_in_this_process(kind, bytes(damaged))
        try:
            actual = loader.load(make_image_source(bytes(damaged))).tobytes()
        except BadRequest:
            actual = None
        assert actual == expected
        outcomes.add((kind, actual is None))

    assert len(outcomes) == 8  # of every format, some files decode and some fail


def decode_in_this_process(image_format: str, file: bytes) -> bytes | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = PIL.Image.open(io.BytesIO(file), formats=(image_format,))
            if image.width * image.height > MediaPolicy().max_image_pixels:
                return None
            image.load()
            return convert_to_rgb(exif_transpose(image)).tobytes()
    except Exception:
        return None
