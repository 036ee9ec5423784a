"""One engine process as the supervisor sees it: its control channel, heartbeat, links and standard error."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from cenote.api.supervisor.engine_launcher import ChildProcess, EngineLauncher
from cenote.api.wire.channel import Channel
from cenote.api.wire.codec_errors import decode_error
from cenote.api.wire.control_messages import (
    ChangeAdapter,
    EngineFailed,
    EngineInit,
    EngineLoaded,
    EngineToSupervisor,
    LoadFailed,
    StopEngine,
)
from cenote.api.wire.device_table import NOTHING, DeviceTable, make_device_table
from cenote.api.wire.heartbeat import HeartbeatReader, make_heartbeat_file
from cenote.api.wire.link_sockets import make_link_sender, send_link
from cenote.api.wire.messages import ArrayBytes, MetricsCall
from cenote.utils.metrics import MetricFamily
from cenote.utils.spawn import describe_exit

logger = logging.getLogger("cenote")

EXIT_POLL_S = 0.02
STOP_TIMEOUT_S = 7.0  # the engine waits up to 5 s for its running batch
METRICS_TIMEOUT_S = 2.0
NUM_LAST_LINES = 20
# sent by somebody else: not a failure of the engine
EXTERNAL_SIGNALS = (-signal.SIGKILL, -signal.SIGTERM)
READ_BYTES = 65536


class EngineHandle:
    def __init__(
        self,
        launcher: EngineLauncher,
        on_loaded: Callable[[EngineHandle], None],
    ) -> None:
        self.launcher = launcher
        self.on_loaded = on_loaded
        self.control: Channel[EngineToSupervisor] = Channel(
            EngineToSupervisor, self._on_message, lambda: None, self._on_unhandled
        )
        self.model_info = b""  # as JSON, once the model is loaded
        self.device_bytes = 0  # memory of the GPU, when the model was loaded
        self.loaded_adapters: dict[str, str] = {}  # at that time
        self.load_error: Exception | None = None
        self.start_error: OSError | None = None  # what the system refused when the process was started or connected
        self.failure: Exception | None = None  # why the engine stopped itself
        self.kill_reason: str | None = None  # why the supervisor killed it
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)  # of its standard error
        self.pid = 0
        self.on_device = NOTHING  # when the process exited
        self._device_table: DeviceTable | None = None
        self._num_oom_kills = 0
        self._partial_line = b""

    @property
    def is_loaded(self) -> bool:
        return bool(self.model_info)

    async def start(self, init: EngineInit) -> None:
        """Start the process; raises OSError if the system refuses it."""
        # a start that fails is repeated for ever, so that it must leave nothing open
        with ExitStack() as on_error, ExitStack() as of_child:
            control, child_control = socket.socketpair()
            self._links, child_links = make_link_sender()
            for sock in (control, self._links):
                on_error.enter_context(sock)
            for sock in (child_control, child_links):
                of_child.enter_context(sock)
            of_child.callback(os.close, heartbeat_fd := make_heartbeat_file())
            of_child.callback(os.close, table_fd := make_device_table())
            self._stderr, child_stderr = os.pipe()
            on_error.callback(os.close, self._stderr)
            of_child.callback(os.close, child_stderr)
            self.heartbeat = HeartbeatReader(heartbeat_fd)
            on_error.callback(self.heartbeat.close)
            self._device_table = DeviceTable(table_fd)
            on_error.callback(setattr, self, "_device_table", None)
            self._num_oom_kills = count_oom_kills()
            child_fds = [child_control.fileno(), child_links.fileno(), heartbeat_fd, table_fd]
            self.process: ChildProcess = await self.launcher.start_engine(child_fds, child_stderr)
            on_error.callback(self.process.kill)
            control.setblocking(False)
            await self.control.connect(control)
            on_error.pop_all()
        self.pid = self.process.pid
        os.set_blocking(self._stderr, False)
        asyncio.get_running_loop().add_reader(self._stderr, self._forward_stderr)
        self.control.send(init)

    def add_link(self, link: socket.socket, engine_id: int) -> None:
        """Connect a front-end: pass the engine's end of a link to the process."""
        send_link(self._links, link, engine_id)

    async def wait_exit(self) -> int:
        """Wait until the process has exited and return its exit code."""
        while (code := self.process.poll()) is None:
            await asyncio.sleep(EXIT_POLL_S)
        return code

    def close(self) -> None:
        """Release the resources of a process that has exited."""
        self._forward_stderr()
        asyncio.get_running_loop().remove_reader(self._stderr)
        os.close(self._stderr)
        self._links.close()
        self.control.close()
        self.heartbeat.close()
        if self._device_table is not None:
            self.on_device, self._device_table = self._device_table.read(), None

    def was_killed_externally(self, code: int) -> bool:
        """Whether somebody else has killed the process: neither this supervisor nor the kernel for lack of memory."""
        return code in EXTERNAL_SIGNALS and self.kill_reason is None and not self._is_out_of_memory(code)

    def is_caused_by_surroundings(self, code: int, has_been_ready: bool) -> bool:
        """Whether the engine itself is not to blame: the system refused to start it, or took away what an engine of
        this model has had before (`has_been_ready`): memory, the files of the model, its life.
        """
        if self.start_error is not None:
            return True
        is_taken = self.load_error is not None or self._is_out_of_memory(code) or self.was_killed_externally(code)
        return has_been_ready and is_taken

    def _is_out_of_memory(self, code: int) -> bool:
        return code == -signal.SIGKILL and count_oom_kills() > self._num_oom_kills

    def describe_exit(self, code: int) -> str:
        """Return why the process has exited, in a few words."""
        if self.kill_reason is not None:
            return self.kill_reason
        if self.start_error is not None:
            return f"could not be started ({self.start_error.strerror or self.start_error})"
        if self.load_error is not None:
            return f"the model cannot be loaded: {self.load_error}"
        if self.failure is not None:
            return str(self.failure)
        memory = " (the kernel has killed a process for lack of memory)" if self._is_out_of_memory(code) else ""
        return f"exited with {describe_exit(code)}{memory}"

    def describe_last_line(self, code: int) -> str:
        """Return the last line that a process wrote before it crashed, for the log."""
        has_said_why = self.kill_reason or self.load_error or self.failure or code in EXTERNAL_SIGNALS
        return f"; last line: {self.last_lines[-1]}" if self.last_lines and not has_said_why else ""

    def kill(self, reason: str) -> None:
        self.kill_reason = self.kill_reason or reason
        self.process.kill()

    async def stop(self) -> None:
        """Ask the process to exit, and kill it if it does not."""
        if not self.pid:
            return
        self.control.send(StopEngine())
        with suppress(TimeoutError):
            await asyncio.wait_for(self.wait_exit(), STOP_TIMEOUT_S)
        if self.process.poll() is None:
            logger.warning("the engine process did not exit in time and is killed")
            self.process.kill()

    def measure_memory(self) -> int:
        """Return the resident bytes of the process and its memory of the GPU; 0 if it does not run."""
        with suppress(OSError, ValueError, IndexError):
            num_pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return num_pages * os.sysconf("SC_PAGE_SIZE") + self.device_bytes
        return 0

    async def collect_metrics(self) -> list[MetricFamily]:
        """Return the metrics of the engine; none if it does not answer."""
        if not self.is_loaded:
            return []
        try:
            return (await asyncio.wait_for(self.control.call(MetricsCall()), METRICS_TIMEOUT_S)).families
        except Exception as error:
            logger.debug("the engine process %d returned no metrics: %s", self.pid, error)
            return []

    async def change_adapter(self, name: str, path: str | None, in_place: bool) -> None:
        """Load an adapter, or unload it (`path` None); return when all front-ends know."""
        await self.control.call(ChangeAdapter(name, path, in_place))

    def _on_message(self, message: EngineToSupervisor, array_bytes: ArrayBytes) -> None:
        if isinstance(message, EngineLoaded):
            self.model_info, self.device_bytes = message.model_info, message.device_bytes
            self.loaded_adapters = message.adapters
            self.on_loaded(self)
        elif isinstance(message, LoadFailed):
            self.load_error = decode_error(message.error)
        else:
            assert isinstance(message, EngineFailed), "all others are replies"
            self.failure = decode_error(message.error)

    def _on_unhandled(self, error: Exception) -> None:
        """Replace the process: its state is not known any more."""
        self.kill(f"the supervisor failed to handle a message of it ({type(error).__name__}: {error})")

    def _forward_stderr(self) -> None:
        """Write what the process has written to standard error to that of the server, and remember the last lines."""
        with suppress(BlockingIOError, InterruptedError):
            while chunk := os.read(self._stderr, READ_BYTES):
                with suppress(OSError, ValueError):
                    sys.stderr.buffer.write(chunk)
                    sys.stderr.flush()
                *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
                self.last_lines.extend(line.decode(errors="replace") for line in lines if line.strip())
            asyncio.get_running_loop().remove_reader(self._stderr)  # end of file


def count_oom_kills() -> int:
    """Return how many processes of this machine the kernel has killed for lack of memory; 0 if it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
