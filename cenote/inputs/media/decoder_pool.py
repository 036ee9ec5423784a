"""Pool of sandboxed child processes that decode images, and the errors for images that fail."""

from __future__ import annotations

import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

from PIL import Image

from cenote.errors import BadRequest, EngineStopped, Overloaded
from cenote.inputs.media import decoder_protocol
from cenote.inputs.media.image_header import ImageHeader
from cenote.utils.system_limits import count_cpus

logger = logging.getLogger("cenote")

NUM_PROCESSES = max(1, min(4, count_cpus() // 4))  # they share one memory budget
# wall time per image. The child's CPU time limit is a third of it: the child runs at low priority, and a valid image
# must not time out on a busy machine
DECODE_TIMEOUT_S = 30.0
START_TIMEOUT_S = 60.0  # imports are slow on a busy machine
EXIT_TIMEOUT_S = 1.0
STOPPED_MESSAGE = "the engine stopped before the image was decoded"
BASE_ADDRESS_SPACE_BYTES = 512 * 1024**2  # virtual memory, most of it never touched
# free memory to the system at once instead of keeping it for the next image
_LOW_MEMORY_ENV = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576", "OPENBLAS_NUM_THREADS": "1"}
# one block per image: freed to the system, while Pillow's 16 MB blocks would stay in the heaps of many threads
Image.core.set_block_size(1024**3)  # type: ignore[attr-defined]


class DecoderPool:
    def __init__(self, decode_budget_bytes: int, num_processes: int = NUM_PROCESSES) -> None:
        self.max_address_space = 2 * decode_budget_bytes + BASE_ADDRESS_SPACE_BYTES
        self.timeout_s = DECODE_TIMEOUT_S
        self._idle: queue.SimpleQueue[DecoderProcess | None] = queue.SimpleQueue()  # None: not started yet, or exited
        for _ in range(num_processes):
            self._idle.put(None)
        self.running: set[DecoderProcess] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._is_sandbox_logged = False

    def decode(self, content: bytes, header: ImageHeader) -> Image.Image:
        """Return the image in RGB, upright; blocks until a child process is idle."""
        child = self._idle.get()
        try:
            if child is None or not child.is_alive:
                self._discard(child)
                child = self._start()
            return child.decode(content, header, self.timeout_s)
        except BadRequest:
            raise
        except BaseException as error:  # the protocol state is unknown: the child cannot be reused
            self._discard(child)
            child = None
            if not isinstance(error, DecoderFailed):
                raise
            if self._closed:
                raise EngineStopped(STOPPED_MESSAGE) from None
            raise BadRequest(str(error)) from None
        finally:
            self._idle.put(child)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            running, self.running = self.running, set()
        for child in running:
            child.stop()

    def detach(self) -> None:
        """Drop the children after a fork: they belong to the parent, whose threads may hold the locks."""
        for child in self.running:
            child.detach()

    def _start(self) -> DecoderProcess:
        if self._closed:
            raise EngineStopped(STOPPED_MESSAGE)
        try:
            child = DecoderProcess(self.max_address_space)
        except (OSError, EOFError):
            raise Overloaded("cannot decode images now: starting a decoder process failed; retry later") from None
        with self._lock:
            if not self._closed:
                self.running.add(child)
                self._log_sandbox(child)
                return child
        child.stop()
        raise EngineStopped(STOPPED_MESSAGE)

    def _log_sandbox(self, child: DecoderProcess) -> None:
        """Say once what holds code back that an image might run in a decoder."""
        if self._is_sandbox_logged:
            return
        self._is_sandbox_logged = True
        missing = ", ".join(layer for layer in decoder_protocol.LAYERS if layer not in child.layers)
        text = f"the sandbox of image decoders has {', '.join(child.layers)}"
        text += f"; this system lacks {missing}" if missing else ""
        if "seccomp" in child.layers:
            logger.info(text)
        else:
            logger.warning("%s; --limit-mm-per-prompt '{\"image\": 0}' refuses images", text)

    def _discard(self, process: DecoderProcess | None) -> None:
        if process is not None:
            with self._lock:
                self.running.discard(process)
            process.stop(kill=True)


class DecoderFailed(Exception):
    """The decoder process died or timed out."""


class DecoderProcess:
    """One decoder process and the socket to it."""

    def __init__(self, max_address_space: int) -> None:
        self._socket, child_socket = socket.socketpair()
        self._lock = threading.Lock()
        # the same import path, and nothing else of the environment, which may hold secrets
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), **_LOW_MEMORY_ENV}
        for name in ("PATH", "PYTHONHOME", "LD_LIBRARY_PATH"):
            if name in os.environ:
                environment[name] = os.environ[name]
        command = [
            sys.executable,
            "-P",
            "-m",
            "cenote.inputs.media.decoder_main",
            str(os.getpid()),
            str(max_address_space),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=child_socket.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # only the parent handles Ctrl-C
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            child_socket.close()
        try:
            ready = bytearray(decoder_protocol.READY.size)
            self._receive(memoryview(ready), time.monotonic() + START_TIMEOUT_S)
            self.layers = decoder_protocol.unpack_layers(bytes(ready))
        except BaseException:
            self.stop(kill=True)
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def decode(self, content: bytes, header: ImageHeader, timeout_s: float) -> Image.Image:
        try:
            with self._lock:
                return self._decode(content, header, time.monotonic() + timeout_s)
        except TimeoutError:
            raise DecoderFailed(f"{_describe_image(header)} took longer than {timeout_s:g} s to decode") from None
        except (OSError, EOFError):
            raise DecoderFailed(
                f"{_describe_image(header)} exceeded the memory or time limit for decoding one image"
            ) from None

    def stop(self, *, kill: bool = False) -> None:
        """Terminate the process and reap it."""
        if kill:
            self._process.kill()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # unblocks a thread in recv()
        try:
            self._process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._lock:
            self._socket.close()

    def detach(self) -> None:
        self._socket.close()
        self._process.returncode = 0  # the parent process reaps it

    def _decode(self, content: bytes, header: ImageHeader, deadline: float) -> Image.Image:
        format_index = decoder_protocol.FORMATS.index(header.format)
        self._send(decoder_protocol.REQUEST.pack(format_index, header.width, header.height, len(content)), deadline)
        self._send(content, deadline)
        response = bytearray(decoder_protocol.RESPONSE.size)
        self._receive(memoryview(response), deadline)
        status, *size = decoder_protocol.RESPONSE.unpack(response)
        if status == decoder_protocol.TOO_LARGE:
            raise BadRequest(f"{_describe_image(header)} exceeded the memory limit for decoding")
        if status != decoder_protocol.DECODED:
            raise BadRequest(f"{_describe_image(header)} is corrupt or truncated, in a file of {len(content):,} bytes")
        if sorted(size) != sorted((header.width, header.height)):
            raise EOFError
        return self._receive_pixels(size[0], size[1], deadline)

    def _receive_pixels(self, width: int, height: int, deadline: float) -> Image.Image:
        image = Image.new("RGB", (width, height), None)  # not zero-filled: pages are allocated as tiles are pasted
        for left, upper, right, lower in decoder_protocol.iter_tiles(width, height):
            size = right - left, lower - upper
            tile = bytearray(3 * size[0] * size[1])
            self._receive(memoryview(tile), deadline)
            image.paste(Image.frombuffer("RGB", size, tile, "raw", "RGB", 0, 1), (left, upper))
        return image

    def _send(self, content: bytes, deadline: float) -> None:
        self._socket.settimeout(_remaining_s(deadline))
        self._socket.sendall(content)

    def _receive(self, buffer: memoryview, deadline: float) -> None:
        while buffer:
            self._socket.settimeout(_remaining_s(deadline))
            num_bytes = self._socket.recv_into(buffer)
            if num_bytes == 0:
                raise EOFError
            buffer = buffer[num_bytes:]


def _remaining_s(deadline: float) -> float:
    remaining_s = deadline - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _describe_image(header: ImageHeader) -> str:
    return f"the {header.format} image of {header.width:,} x {header.height:,} pixels"
