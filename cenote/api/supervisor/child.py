"""Child: a process of the server, which is started again when it exits and killed when it hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from cenote.api.supervisor.restart_policy import ChildExit, RestartPolicy
from cenote.api.wire.channel import Channel, Reply, refuse_calls
from cenote.api.wire.device_table import NOTHING, OnDevice
from cenote.api.wire.heartbeat import Beat, HeartbeatReader, make_heartbeat_file, read_beats
from cenote.api.wire.link_sockets import make_link_sender, send_link
from cenote.api.wire.messages import ArrayBytes, Message
from cenote.utils.spawn import describe_exit

logger = logging.getLogger("cenote")

# how often the exit of a process is looked for while it holds its channel open, and when it has closed it
POLL_S, EXIT_POLL_S = 0.2, 0.02
EXIT_MARGIN_S = 2.0  # a process that has closed its channel, or has finished its requests, exits within this time
# sent by somebody else: not a failure of the process
EXTERNAL_SIGNALS = (-signal.SIGKILL, -signal.SIGTERM)

MessageT = TypeVar("MessageT")


class ChildProcess(Protocol):
    """A process that this one has started: a subprocess.Popen or a ForkedProcess."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the exit code as subprocess.Popen does; None if the process runs."""
        ...

    def kill(self) -> None: ...


class Child(ABC, Generic[MessageT]):
    """One process after the other: its channel, heartbeat, sockets for links, and the policy of its restarts."""

    message_type: ClassVar[Any]  # of what the process sends
    load_failure: ClassVar[str]  # what `load_error` is the reason of
    label: str  # for the log
    stop_timeout_s: float

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.has_been_ready = False  # one of the processes
        self.stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the process that has exited."""
        channel: Channel[MessageT] = Channel(
            self.message_type,
            lambda message, _: self.on_message(message),
            lambda: self._on_closed(channel),
            self.on_unhandled,
            self.answer,
        )
        self.channel = channel
        self.has_closed = asyncio.Event()  # the channel: the process exits, or is killed soon
        self.process: ChildProcess | None = None
        self.is_running = False  # it has been started and introduced, and has not exited
        self.is_ready = False  # it does what it is for
        self.load_error: Exception | None = None  # why it cannot do it
        self.failure: Exception | None = None  # why it stopped itself
        self.start_error: OSError | None = None  # what the system refused when it was started or connected
        self.kill_reason: str | None = None  # why the supervisor killed it
        self.on_device: OnDevice = NOTHING  # when it exited
        self._num_oom_kills = 0

    @property
    def pid(self) -> int:
        return 0 if self.process is None else self.process.pid

    # what the process is

    @abstractmethod
    async def spawn(self, fds: Sequence[int], on_error: ExitStack, of_child: ExitStack) -> ChildProcess:
        """Start the process with these files; it closes the files in `of_child` here, and `on_error` if that fails."""

    @abstractmethod
    def introduce(self) -> None:
        """Send the process that has just been started what it needs; raise OSError if the system refuses that."""

    @abstractmethod
    def on_message(self, message: MessageT) -> None: ...

    def answer(self, call: Any, array_bytes: ArrayBytes) -> Reply | Awaitable[Reply]:
        return refuse_calls(call, array_bytes)

    def on_unhandled(self, error: Exception) -> None:
        """A message cannot be read or handled."""

    def on_beat(self, beat: Beat) -> None:
        """The process was observed, several times a second."""

    @abstractmethod
    def find_hang(self, beat: Beat) -> str | None:
        """Return why the process has to be killed; None while it works."""

    @abstractmethod
    def make_stop_message(self) -> Message: ...

    @abstractmethod
    def on_exited(self, reason: str, code: int) -> None:
        """The process has exited; called before another one is started."""

    @abstractmethod
    def find_final_error(self, reason: str) -> Exception | None:
        """Return why no other process is started; None once one was ready."""

    @abstractmethod
    def on_given_up(self, error: Exception) -> None: ...

    @abstractmethod
    def on_restart(self, reason: str, code: int) -> None:
        """Another process will be started, after the delay of the policy."""

    # its life

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._keep_running())

    async def stop(self) -> None:
        """Ask the process to exit, kill it if it does not in time, and start no other one."""
        self.stopping.set()
        if (process := self.process) is not None and process.poll() is None:
            self.channel.send(self.make_stop_message())
            with suppress(TimeoutError):
                await asyncio.wait_for(wait_exit(process, self.has_closed), self.stop_timeout_s)
            if process.poll() is None:
                logger.warning("%s did not exit in time and is killed", self.label)
                process.kill()
        if self._task is not None:
            await self._task

    def kill(self, reason: str) -> None:
        """End the process at once; `reason`: what it did, for the log."""
        self.kill_reason = self.kill_reason or reason
        if self.process is not None:
            self.process.kill()

    def add_link(self, link: socket.socket, engine_id: int) -> bool:
        """Pass one end of a link between a front-end and an engine to the process; return whether it could take it."""
        return send_link(self._links, link, engine_id)

    async def _keep_running(self) -> None:
        while not self.stopping.is_set():
            try:
                is_final = await self._run_and_judge()
            except Exception as error:  # a defect: what is watched no more would never come back
                logger.exception("the supervisor failed to manage %s", self.label)
                is_final = False
                with suppress(Exception):  # perhaps that is what fails
                    reason = f"the supervisor failed ({type(error).__name__}: {error})"
                    is_final = self._judge(ChildExit(is_ready=False), reason, 0)
            if is_final:
                return
            await self._wait_stopping(self.policy.delay_s)

    async def _run_and_judge(self) -> bool:
        """Run one process until it exits; return whether no other one is started."""
        code = await self._run()
        if self.stopping.is_set():
            return True
        reason = self.describe_exit(code)
        self.on_exited(reason, code)
        return self._judge(ChildExit(self.is_ready, self.is_caused_by_surroundings(code), self.on_device), reason, code)

    def _judge(self, exit_: ChildExit, reason: str, code: int) -> bool:
        self.policy.on_exit(exit_)
        if (error := self.find_final_error(reason)) is not None:
            self.on_given_up(error)
            return True
        self.on_restart(reason, code)
        return False

    async def _run(self) -> int:
        """Run one process until it exits; return its exit code."""
        self.reset()
        try:
            process = await self._start()
        except OSError as error:  # for example the limit of processes is reached for the moment
            self.start_error = error
            return 1
        watcher = asyncio.get_running_loop().create_task(self._watch())
        try:
            if self.stopping.is_set():
                process.kill()
            else:
                self.is_running = True
                self.introduce()
        except Exception as error:
            if isinstance(error, OSError):  # no descriptors are left for its links
                self.start_error = error
            else:
                logger.exception("%s (process %d) could not be connected", self.label, process.pid)
            self.kill(f"it could not be connected ({error})")
        try:
            code = await wait_exit(process, self.has_closed)
        finally:
            watcher.cancel()
            self.is_running = False
        self.close()
        return code

    async def _start(self) -> ChildProcess:
        """Start a process and connect with it; raise OSError if the system refuses it."""
        # a start that fails is repeated for ever, so that it must leave nothing open
        with ExitStack() as on_error, ExitStack() as of_child:
            channel, child_channel = socket.socketpair()
            self._links, child_links = make_link_sender()
            for sock in (channel, self._links):
                on_error.enter_context(sock)
            for sock in (child_channel, child_links):
                of_child.enter_context(sock)
            of_child.callback(os.close, heartbeat_fd := make_heartbeat_file())
            self.heartbeat = HeartbeatReader(heartbeat_fd)
            on_error.callback(self.heartbeat.close)
            self._num_oom_kills = count_oom_kills()
            fds = [child_channel.fileno(), child_links.fileno(), heartbeat_fd]
            process = self.process = await self.spawn(fds, on_error, of_child)
            on_error.callback(process.kill)
            channel.setblocking(False)
            await self.channel.connect(channel)
            on_error.pop_all()
        return process

    def close(self) -> None:
        """Release the resources of a process that has exited."""
        self._links.close()
        self.channel.close()
        self.heartbeat.close()

    async def _watch(self) -> None:
        """Kill a process that hangs."""
        async for beat in read_beats(self.heartbeat):
            self.on_beat(beat)
            if (hang := self.find_hang(beat)) is not None:
                self.kill(hang)

    def _on_closed(self, channel: Channel[MessageT]) -> None:
        """Kill a process that closes its channel, or sends garbage, unless it exits soon."""
        if channel is not self.channel:
            return
        self.has_closed.set()
        if (process := self.process) is not None and process.poll() is None:
            asyncio.get_running_loop().call_later(EXIT_MARGIN_S, self._kill_disconnected, process)

    def _kill_disconnected(self, process: ChildProcess) -> None:
        if process is self.process and process.poll() is None:
            self.kill(self._describe_failure() or "it closed its channel and was killed")

    async def _wait_stopping(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), timeout_s)

    # why it has exited

    def was_killed_externally(self, code: int) -> bool:
        """Whether somebody else has killed the process: neither this supervisor nor the kernel for lack of memory."""
        return code in EXTERNAL_SIGNALS and self.kill_reason is None and not self._is_out_of_memory(code)

    def is_caused_by_surroundings(self, code: int) -> bool:
        """Whether the process itself is not to blame: the system refused to start it, or took away what a process
        before it has had: memory, its files, its life.
        """
        if self.start_error is not None:
            return True
        is_taken = self.load_error is not None or self._is_out_of_memory(code) or self.was_killed_externally(code)
        return self.has_been_ready and is_taken

    def _is_out_of_memory(self, code: int) -> bool:
        return code == -signal.SIGKILL and count_oom_kills() > self._num_oom_kills

    def describe_exit(self, code: int) -> str:
        """Return why the process has exited, in a few words."""
        if self.kill_reason is not None:
            return self.kill_reason
        if self.start_error is not None:
            return f"could not be started ({self.start_error.strerror or self.start_error})"
        if failure := self._describe_failure():
            return failure
        memory = " (the kernel has killed a process for lack of memory)" if self._is_out_of_memory(code) else ""
        return f"exited with {describe_exit(code)}{memory}"

    def _describe_failure(self) -> str:
        """Return what the process itself has reported; "" if nothing."""
        if self.load_error is not None:
            return f"{self.load_failure}: {self.load_error}"
        return "" if self.failure is None else str(self.failure)


async def wait_exit(process: ChildProcess, has_closed: asyncio.Event) -> int:
    """Return the exit code of a process, which has closed its channel by then."""
    while (code := process.poll()) is None:
        if has_closed.is_set():
            await asyncio.sleep(EXIT_POLL_S)
            continue
        with suppress(TimeoutError):  # a process that it has forked may hold the channel open
            await asyncio.wait_for(has_closed.wait(), POLL_S)
    return code


def count_oom_kills() -> int:
    """Return how many processes of this machine the kernel has killed for lack of memory; 0 if it does not tell."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
