"""The process that decodes: it dies, hangs and ends without taking anybody along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cenote.errors import BadRequest, EngineStopped, Overloaded
from cenote.inputs.media import decoder_pool
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.memory_budget import Budget
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import WHERE, file_of, given, noise
from tests.inputs.media.hostile_images import webp

GOOD = file_of(noise(10, 8))


@pytest.fixture
def loader() -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


def child_of(loader: MediaLoader) -> int:
    (child,) = loader._decoders._running
    return child.pid


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def eventually(holds: object) -> bool:
    for _ in range(500):
        if holds():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_no_process_is_started_before_there_is_an_image(loader: MediaLoader) -> None:
    assert not loader._decoders._running


def test_one_process_decodes_for_all_threads(loader: MediaLoader) -> None:
    with ThreadPoolExecutor(16) as threads:
        images = list(threads.map(lambda _: loader.load(given(GOOD)), range(64)))

    assert {image.tobytes() for image in images} == {noise(10, 8).tobytes()}
    assert len(loader._decoders._running) == 1


def test_it_can_open_nothing_and_has_little_of_everything(loader: MediaLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    loader.load(given(GOOD))
    process = Path(f"/proc/{child_of(loader)}")
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()}

    assert limits["Max open files"] == ["3", "3"]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max address space"] == [str(3 * 512 * 1024**2)] * 2
    assert int(limits["Max cpu time"][0]) <= 12
    assert (process / "stat").read_text().rpartition(")")[2].split()[16] == str(os.nice(0) + 10)
    assert b"SECRET_KEY" not in (process / "environ").read_bytes()
    assert len(list((process / "fd").iterdir())) == 3


def test_one_that_died_in_between_is_replaced_unseen(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    first = child_of(loader)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: state(first) in ("Z", "gone"))

    assert loader.load(given(GOOD)).size == (10, 8)
    assert child_of(loader) != first and state(first) == "gone"


def test_one_that_dies_at_an_image_costs_that_image_alone(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    first = child_of(loader)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(loader.load, given(GOOD))
        time.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(BadRequest, match="more memory or time to decode than one image gets") as caught:
            lost.result(5)

    assert caught.value.message.startswith(f"{WHERE}: the PNG image of 10 x 8 pixels")
    assert loader.load(given(GOOD)).size == (10, 8)
    assert state(first) == "gone"


def test_one_that_hangs_is_ended_in_time(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    loader._decoders.timeout_s = 0.2
    first = child_of(loader)
    os.kill(first, signal.SIGSTOP)

    with pytest.raises(BadRequest, match="took longer than 0.2 s to decode"):
        loader.load(given(GOOD))

    assert state(first) == "gone"
    loader._decoders.timeout_s = 30
    assert loader.load(given(GOOD)).size == (10, 8)


def test_a_large_file_does_not_wait_for_one_that_reads_nothing(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    loader._decoders.timeout_s = 0.2
    os.kill(child_of(loader), signal.SIGSTOP)

    with pytest.raises(BadRequest, match="took longer"):
        loader.load(given(file_of(noise(1000, 1000), compress_level=0)))


def test_an_image_that_needs_too_much_memory_is_refused(loader: MediaLoader) -> None:
    loader._decoders.address_space = 200 * 1024**2

    with pytest.raises(BadRequest, match="the WEBP image of 4,000 x 4,000 pixels"):
        loader.load(given(webp(4000, 4000)))

    assert loader.load(given(GOOD)).size == (10, 8)


def test_closing_ends_it_and_whoever_comes_later_is_told(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    process = child_of(loader)

    loader.close()
    loader.close()

    assert state(process) == "gone"
    with pytest.raises(EngineStopped):
        loader.load(given(GOOD))


def test_closing_in_the_middle_of_an_image_leaves_nobody_waiting(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    process = child_of(loader)
    os.kill(process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(loader.load, given(GOOD))
        time.sleep(0.05)
        loader.close()
        with pytest.raises(EngineStopped):
            lost.result(5)

    assert state(process) == "gone"


def test_where_no_process_can_be_started_the_request_may_come_again(
    loader: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_pool.sys, "executable", "/nowhere/python")

    with pytest.raises(Overloaded):
        loader.load(given(GOOD))

    monkeypatch.undo()
    assert loader.load(given(GOOD)).size == (10, 8)


def test_a_loader_that_is_forgotten_ends_its_process() -> None:
    loader = MediaLoader(MediaPolicy())
    loader.load(given(GOOD))
    process = child_of(loader)

    del loader

    assert eventually(lambda: state(process) == "gone")


def test_it_ends_with_its_parent_however_that_ends() -> None:
    code = """
import os, sys
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.protocol.images import Image
loader = MediaLoader(MediaPolicy())
loader.load(Image(bytes.fromhex(sys.argv[1]), "image"))
(child,) = loader._decoders._running
print(child.pid, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""
    for ending, status in (("killed", -9), ("left", 0)):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, GOOD.hex(), ending], capture_output=True, text=True, timeout=60
        )

        assert done.returncode == status and done.stderr == ""
        assert eventually(
            lambda pid=int(done.stdout): state(pid) in ("gone", "Z")
        )  # Z: where nobody is there to reap it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of forks while threads run, rightly
def test_a_forked_process_has_one_of_its_own(loader: MediaLoader) -> None:
    loader.load(given(GOOD))
    process = child_of(loader)
    forked = os.fork()
    if forked == 0:  # no pytest in here: the status is the verdict
        try:
            loader.load(given(GOOD))
            other = child_of(loader)
            loader.close()
            os._exit(7 if other != process and state(process) not in ("Z", "gone") else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
    assert loader.load(given(GOOD)).size == (10, 8)
    assert child_of(loader) == process


def test_a_budget_is_shared_in_turn() -> None:
    budget = Budget(10)
    order: list[str] = []

    def take(name: str, num_bytes: int) -> None:
        with budget.share() as share:
            share.grow(num_bytes)
            order.append(name)

    with budget.share() as share:
        share.grow(6)
        threads = [threading.Thread(target=take, args=it) for it in (("large", 10), ("small", 1))]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            assert eventually(lambda number=number: len(budget._turns) == number)
        with pytest.raises(TimeoutError):
            share.grow(5, timeout_s=0.01)
        assert order == []  # the small one would fit, and does not overtake
    for thread in threads:
        thread.join()

    assert order == ["large", "small"]
    assert budget._free == 10
