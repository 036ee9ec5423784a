"""EngineChild: the engine process of one replica, with its model, its adapters and its standard error."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar, Protocol

import msgspec

from cenote.api.supervisor.child import EXTERNAL_SIGNALS, Child, ChildProcess
from cenote.api.supervisor.engine_launcher import EngineLauncher
from cenote.api.supervisor.restart_policy import RestartPolicy
from cenote.api.wire.codec_errors import deserialize_error
from cenote.api.wire.control_messages import (
    EngineExited,
    EngineFailed,
    EngineInit,
    EngineLoaded,
    EngineToSupervisor,
    ExitCause,
    LoadFailed,
    SetAdapters,
    StopEngine,
)
from cenote.api.wire.device_table import DeviceTable, make_device_table
from cenote.api.wire.heartbeat import HEARTBEAT_TIMEOUT_S, Beat
from cenote.api.wire.messages import Message, MetricsCall
from cenote.errors import EngineHung, EngineStopped
from cenote.protocol.engine import EngineStatus
from cenote.utils.metrics import MetricFamily, MetricsRegistry

logger = logging.getLogger("cenote")

LATE_BEAT_S = 0.5  # a process without a beat for longer does not compute
LOADING_HEARTBEAT_TIMEOUT_S = 300.0  # loading may hold the interpreter for long
# the engine's own watchdog goes first: its requests get a message that says what happened
STEP_TIMEOUT_MARGIN_S = 1.0
METRICS_TIMEOUT_S = 2.0
NUM_LAST_LINES = 20
READ_BYTES = 65536


class EngineListener(Protocol):
    """Learns what happens to an engine process."""

    def on_engine_started(self, child: EngineChild, /) -> None: ...

    def on_engine_ready(self, child: EngineChild, model_info: bytes, /) -> None: ...

    def on_engine_speed(self, child: EngineChild, /) -> None: ...

    def on_engine_status(self, child: EngineChild, reason: str, /) -> None: ...

    def on_engine_exited(self, exited: EngineExited, /) -> None: ...

    def on_engine_failed(self, child: EngineChild, error: Exception, /) -> None: ...


class EngineChild(Child[EngineToSupervisor]):
    message_type: ClassVar = EngineToSupervisor
    load_failure = "the model cannot be loaded"
    stop_timeout_s = 7.0  # the engine waits up to 5 s for its running batch

    def __init__(
        self,
        engine_id: int,
        init: EngineInit,
        step_timeout_s: float,
        listener: EngineListener,
        launcher: EngineLauncher,
        name: str = "",
    ) -> None:
        """`engine_id`: never used again by this server. `name`: of the model, in logs of servers with several."""
        self.engine_id = engine_id
        self.name = f" of {name}" if name else ""
        self.label = f"the engine process{self.name}"
        self.init = init
        self.step_timeout_s = step_timeout_s
        self.listener = listener
        self.launcher = launcher
        self.status: EngineStatus = "loading"
        self.reason = ""  # why it does not answer
        self.since = 0.0  # Unix time since when it does not answer; 0.0 while it does, and before the first exit
        # path by name, the same at all replicas of the model; None before it has been loaded for the first time
        self.adapters: dict[str, str] | None = None
        self.changed_adapters: set[str] = set()  # that requests have loaded since the process was started
        self._num_exits = 0
        self.has_torch = False  # whether the last process has imported torch
        self.tokens_per_s = 0.0  # as the last process that has measured it, 0.0: not known
        self.late_s = 0.0  # for which the process does not compute what it should; 0.0 while it does
        self.registry = MetricsRegistry()
        self._count_restart = self.registry.counter(
            "cenote_engine_restarts_total", "Engine processes started again after one has exited."
        )
        super().__init__(RestartPolicy())

    def reset(self) -> None:
        super().reset()
        self.device_bytes = 0  # memory of the GPU, when the model was loaded
        self._device_table: DeviceTable | None = None
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)  # of its standard error
        self._partial_line = b""

    async def spawn(self, fds: Sequence[int], on_error: ExitStack, of_child: ExitStack) -> ChildProcess:
        of_child.callback(os.close, table_fd := make_device_table())
        self._device_table = DeviceTable(table_fd)
        on_error.callback(setattr, self, "_device_table", None)
        self._stderr, child_stderr = os.pipe()
        on_error.callback(os.close, self._stderr)
        os.set_blocking(self._stderr, False)
        of_child.callback(os.close, child_stderr)
        return await self.launcher.start_engine([*fds, table_fd], child_stderr, needs_torch=self.has_torch)

    def introduce(self) -> None:
        asyncio.get_running_loop().add_reader(self._stderr, self._forward_stderr)
        adapters = self.init.adapters if self.adapters is None else self.adapters
        self.init = msgspec.structs.replace(self.init, adapters=adapters, engine_number=self._num_exits)
        self.changed_adapters.clear()
        self.channel.send(self.init)
        self.listener.on_engine_started(self)

    def on_message(self, message: EngineToSupervisor) -> None:
        if isinstance(message, EngineLoaded):
            self._on_loaded(message)
        elif isinstance(message, LoadFailed):
            self.load_error = deserialize_error(message.error)
        else:
            assert isinstance(message, EngineFailed), "all others are replies"
            self.failure = deserialize_error(message.error)

    def _on_loaded(self, message: EngineLoaded) -> None:
        self.is_ready = self.has_been_ready = True
        self.device_bytes, self.has_torch = message.device_bytes, message.has_torch
        if self.adapters is None:
            self.adapters = message.adapters
        self.channel.send(SetAdapters(self.adapters, sorted(self.changed_adapters)))
        self._set_status("ready", "")
        self.listener.on_engine_ready(self, message.model_info)

    def on_unhandled(self, error: Exception) -> None:
        """Replace the process: its state is not known any more."""
        self.kill(f"the supervisor failed to handle a message of it ({type(error).__name__}: {error})")

    def on_beat(self, beat: Beat) -> None:
        if self.is_ready:
            self.tokens_per_s = beat.tokens_per_s or self.tokens_per_s
            self.late_s = beat.age_s if beat.age_s > LATE_BEAT_S else beat.late_s
            self.listener.on_engine_speed(self)

    def find_hang(self, beat: Beat) -> str | None:
        if beat.age_s > (HEARTBEAT_TIMEOUT_S if self.is_ready else LOADING_HEARTBEAT_TIMEOUT_S):
            return f"it gave no sign of life for {beat.age_s:.1f} s and was killed"
        if beat.stage and beat.busy_s > self.step_timeout_s + STEP_TIMEOUT_MARGIN_S and self.is_ready:
            limit = f"{self.step_timeout_s:g} s (step_timeout_s)"
            return f"its {beat.stage} did not finish within {limit} and it was killed"
        return None

    def make_stop_message(self) -> Message:
        return StopEngine()

    def close(self) -> None:
        self._forward_stderr()
        asyncio.get_running_loop().remove_reader(self._stderr)
        os.close(self._stderr)
        if self._device_table is not None:
            self.on_device, self._device_table = self._device_table.read(), None
        super().close()

    def on_exited(self, reason: str, code: int) -> None:
        """Tell the front-ends what was on the device, before they send anything to the next process."""
        self._num_exits += 1
        calls, is_isolated, _ = self.on_device
        self.listener.on_engine_exited(
            EngineExited(self.engine_id, self._num_exits, reason, calls, is_isolated, self._find_cause(code))
        )

    def _find_cause(self, code: int) -> ExitCause:
        if self.was_killed_externally(code):
            return "external"
        return "hang" if self.kill_reason is not None or isinstance(self.failure, EngineHung) else "crash"

    def find_final_error(self, reason: str) -> Exception | None:
        if self.has_been_ready:
            return None
        if self.load_error is not None:  # a wrong option or a broken file: trying again changes nothing
            return self.load_error
        return EngineStopped(self._describe_crash_loop(reason)) if self.policy.is_crash_loop else None

    def on_given_up(self, error: Exception) -> None:
        if error is not self.load_error:
            logger.error("%s; no more%s are started", error, self.name)
            self._set_status("failed", str(error))
        self.listener.on_engine_failed(self, error)

    def on_restart(self, reason: str, code: int) -> None:
        policy = self.policy
        status: EngineStatus = "restarting" if self.has_been_ready else "loading"
        state = reason
        if policy.is_crash_loop:
            status, state = "failed", self._describe_crash_loop(reason)
        when = f"in {policy.delay_s:.1f} s" if policy.delay_s else "now"
        has_said_why = self.kill_reason or self.load_error or self.failure or code in EXTERNAL_SIGNALS
        last_line = f"; last line: {self.last_lines[-1]}" if self.last_lines and not has_said_why else ""
        logger.error(
            "the engine process %d%s has ended: %s%s; starting another %s", self.pid, self.name, reason, last_line, when
        )
        if status == "failed" and self.status != "failed":
            logger.error("the model%s has failed: %s; it is tried again until it serves", self.name, state)
        self._count_restart()
        self._set_status(status, state)

    def _describe_crash_loop(self, reason: str) -> str:
        return f"{self.policy.describe_crash_loop()}, the last one: {reason}"

    def _set_status(self, status: EngineStatus, reason: str) -> None:
        if status == "ready":
            self.since = 0.0
        elif not self.since:
            self.since = time.time()
        self.status, self.reason = status, reason
        self.listener.on_engine_status(self, reason)

    def measure_memory(self) -> int:
        """Return the resident bytes of the process and its memory of the GPU; 0 if it does not run."""
        with suppress(OSError, ValueError, IndexError):
            num_pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
            return num_pages * os.sysconf("SC_PAGE_SIZE") + self.device_bytes
        return 0

    async def collect_metrics(self) -> list[MetricFamily]:
        """Return the metrics of the engine, if it answers, and those of its restarts."""
        families: list[MetricFamily] = []
        if self.is_ready:
            try:
                call = self.channel.call(MetricsCall())
                families = (await asyncio.wait_for(call, METRICS_TIMEOUT_S)).families
            except Exception as error:
                logger.debug("the engine process %d returned no metrics: %s", self.pid, error)
        return [*families, *self.registry.snapshot()]

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
