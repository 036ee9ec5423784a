"""Decoder processes: sandboxing, crashes, timeouts and shutdown."""

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
from cenote.inputs.media.memory_budget import MemoryBudget
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, encode_image, make_image_source, noise
from tests.inputs.media.hostile_images import webp

GOOD = encode_image(noise(10, 8))


@pytest.fixture
def loader() -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


def get_decoder_pid(loader: MediaLoader) -> int:
    (child,) = loader.decoder_pool.running
    return child.pid


def state(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def eventually(condition: object) -> bool:
    for _ in range(500):
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.01)
    return False


def test_no_process_is_started_before_the_first_image(loader: MediaLoader) -> None:
    assert not loader.decoder_pool.running


def test_one_process_decodes_for_all_threads(loader: MediaLoader) -> None:
    with ThreadPoolExecutor(16) as threads:
        images = list(threads.map(lambda _: loader.load(make_image_source(GOOD)), range(64)))

    assert {image.tobytes() for image in images} == {noise(10, 8).tobytes()}
    assert len(loader.decoder_pool.running) == 1


def test_a_decoder_process_has_limits(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    process = Path(f"/proc/{get_decoder_pid(loader)}")
    limits = {line[:26].strip(): line[26:].split()[:2] for line in (process / "limits").read_text().splitlines()}

    assert limits["Max open files"] == limits["Max processes"] == ["0", "0"]
    assert limits["Max file size"] == ["0", "0"]
    assert limits["Max core file size"] == ["0", "0"]
    assert limits["Max address space"] == [str(3 * 512 * 1024**2)] * 2
    assert int(limits["Max cpu time"][0]) <= 12
    assert (process / "stat").read_text().rpartition(")")[2].split()[16] == str(min(os.nice(0) + 10, 19))


def test_a_dead_idle_decoder_is_replaced(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    first = get_decoder_pid(loader)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: state(first) in ("Z", "gone"))

    assert loader.load(make_image_source(GOOD)).size == (10, 8)
    assert get_decoder_pid(loader) != first and state(first) == "gone"


def test_a_decoder_that_dies_fails_only_its_image(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    first = get_decoder_pid(loader)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(loader.load, make_image_source(GOOD))
        time.sleep(0.05)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(BadRequest, match="exceeded the memory or time limit for decoding one image") as caught:
            pending.result(5)

    assert caught.value.message.startswith(f"{PARAM_PATH}: the PNG image of 10 x 8 pixels")
    assert loader.load(make_image_source(GOOD)).size == (10, 8)
    assert state(first) == "gone"


def test_a_hanging_decoder_is_killed(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    loader.decoder_pool.timeout_s = 0.2
    first = get_decoder_pid(loader)
    os.kill(first, signal.SIGSTOP)

    with pytest.raises(BadRequest, match="took longer than 0.2 s to decode"):
        loader.load(make_image_source(GOOD))

    assert state(first) == "gone"
    loader.decoder_pool.timeout_s = 30
    assert loader.load(make_image_source(GOOD)).size == (10, 8)


def test_sending_a_large_file_to_a_stuck_decoder_times_out(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    loader.decoder_pool.timeout_s = 0.2
    os.kill(get_decoder_pid(loader), signal.SIGSTOP)

    with pytest.raises(BadRequest, match="took longer"):
        loader.load(make_image_source(encode_image(noise(1000, 1000), compress_level=0)))


def test_an_image_that_needs_too_much_memory_is_refused(loader: MediaLoader) -> None:
    loader.decoder_pool.max_address_space = 200 * 1024**2

    with pytest.raises(BadRequest, match="the WEBP image of 4,000 x 4,000 pixels"):
        loader.load(make_image_source(webp(4000, 4000)))

    assert loader.load(make_image_source(GOOD)).size == (10, 8)


def test_close_stops_the_process_and_later_calls_fail(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    process = get_decoder_pid(loader)

    loader.close()
    loader.close()

    assert state(process) == "gone"
    with pytest.raises(EngineStopped):
        loader.load(make_image_source(GOOD))


def test_close_during_decoding_unblocks_the_caller(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    process = get_decoder_pid(loader)
    os.kill(process, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(loader.load, make_image_source(GOOD))
        time.sleep(0.05)
        loader.close()
        with pytest.raises(EngineStopped):
            pending.result(5)

    assert state(process) == "gone"


def test_a_failure_to_start_a_process_is_reported_as_overloaded(
    loader: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_pool.sys, "executable", "/nowhere/python")

    with pytest.raises(Overloaded):
        loader.load(make_image_source(GOOD))

    monkeypatch.undo()
    assert loader.load(make_image_source(GOOD)).size == (10, 8)


def test_a_garbage_collected_loader_stops_its_process() -> None:
    loader = MediaLoader(MediaPolicy())
    loader.load(make_image_source(GOOD))
    process = get_decoder_pid(loader)

    del loader

    assert eventually(lambda: state(process) == "gone")


def test_a_decoder_exits_with_its_parent() -> None:
    code = """
import os, sys
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from cenote.protocol.images import ImageSource
loader = MediaLoader(MediaPolicy())
loader.load(ImageSource(bytes.fromhex(sys.argv[1]), "image"))
(child,) = loader.decoder_pool.running
print(child.pid, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""
    for ending, status in (("killed", -9), ("left", 0)):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code, GOOD.hex(), ending], capture_output=True, text=True, timeout=60
        )

        assert done.returncode == status and done.stderr == ""
        assert eventually(lambda pid=int(done.stdout): state(pid) in ("gone", "Z"))  # Z: no parent to reap it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork with running threads, on purpose
def test_a_forked_process_starts_its_own_decoder(loader: MediaLoader) -> None:
    loader.load(make_image_source(GOOD))
    process = get_decoder_pid(loader)
    forked = os.fork()
    if forked == 0:  # no pytest in the child: the exit status is the result
        try:
            loader.load(make_image_source(GOOD))
            other = get_decoder_pid(loader)
            loader.close()
            os._exit(7 if other != process and state(process) not in ("Z", "gone") else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 7
    assert loader.load(make_image_source(GOOD)).size == (10, 8)
    assert get_decoder_pid(loader) == process


def test_a_memory_budget_is_granted_in_order() -> None:
    budget = MemoryBudget(10)
    order: list[str] = []

    def acquire(name: str, num_bytes: int) -> None:
        with budget.lease() as lease:
            lease.grow(num_bytes)
            order.append(name)

    with budget.lease() as lease:
        lease.grow(6)
        threads = [threading.Thread(target=acquire, args=args) for args in (("large", 10), ("small", 1))]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            assert eventually(lambda number=number: len(budget.queue) == number)
        with pytest.raises(TimeoutError):
            lease.grow(5, timeout_s=0.01)
        assert order == []  # the small one would fit, but waits behind the large one
    for thread in threads:
        thread.join()

    assert order == ["large", "small"]
    assert budget.free_bytes == 10
