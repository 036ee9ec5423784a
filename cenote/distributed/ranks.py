"""RankProcesses: start the other ranks of a model, send them work and notice when one exits."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from cenote.config.engine import EngineConfig
from cenote.config.engine_json import encode_engine_config
from cenote.distributed.messages import Connect, Failed, RunBackbone, RunSplade, Start, receive_from_rank, send
from cenote.errors import EngineStopped, LoadError, PoolingError
from cenote.layers.parallel_group import ParallelGroup
from cenote.utils.spawn import describe_exit, spawn_module

logger = logging.getLogger("cenote")

WORKER_MODULE = "cenote.distributed.worker"
# how long a rank may take to exit by itself
EXIT_TIMEOUT_S = 5.0
# how long an error of a collective operation waits for the reason of the rank that caused it
REASON_TIMEOUT_S = 2.0


class RankProcesses:
    """The processes of ranks 1 to N - 1; this process is rank 0.

    One thread starts them and reads what they send. The kernel kills them when that thread ends: it lives as long as
    they are needed, unlike the thread that loads the model.
    """

    def __init__(self, config: EngineConfig, devices: Sequence[str]) -> None:
        self.group = ParallelGroup(0, len(devices))
        self.devices = list(devices)
        self.failure: PoolingError | None = None
        self.on_failure: Callable[[PoolingError], None] = lambda error: None
        self.processes: list[subprocess.Popen[bytes]] = []
        self._config = replace(config, device=None, devices=tuple(devices))
        self._encoded_config = encode_engine_config(self._config)
        self._sockets: list[socket.socket] = []
        self._num_threads = torch.get_num_threads()
        self._is_closing = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_loaded = 0
        self.num_read_bytes: dict[int, int] = {}  # by rank
        self._thread = threading.Thread(target=self._watch, name="cenote-ranks", daemon=True)
        if self.is_cpu:
            torch.set_num_threads(self._threads_per_rank)
        self._thread.start()

    @property
    def is_cpu(self) -> bool:
        return torch.device(self.devices[0]).type == "cpu"

    @property
    def _threads_per_rank(self) -> int:
        return max(1, self._num_threads // len(self.devices))

    @property
    def _use_nccl(self) -> bool:
        return not self.is_cpu and len(set(self.devices)) == len(self.devices)

    def connect(self) -> None:
        """Wait until all ranks have loaded their parts, then for their connections."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or self._num_loaded == len(self.devices) - 1)
            if self.failure is not None:
                raise self.failure
        with tempfile.TemporaryDirectory(prefix="cenote-ranks-") as folder:  # readable by this user only
            store_file = os.path.join(folder, "store")
            self.send(Connect(store_file, self._use_nccl))
            try:
                self.group.connect(store_file, torch.device(self.devices[0]), use_nccl=self._use_nccl)
            except RuntimeError as error:
                raise self.make_error(error) from error

    def watch(self, on_failure: Callable[[PoolingError], None]) -> None:
        """Call `on_failure` when a rank exits, or at once if one has."""
        with self._lock:
            self.on_failure = on_failure
            failure = self.failure
        if failure is not None:
            on_failure(failure)

    def send(self, message: Connect | RunBackbone | RunSplade) -> None:
        """Have all ranks compute the same."""
        try:
            for sock in self._sockets:
                send(sock, message)
        except OSError as error:
            raise self.make_error(error) from error

    def make_error(self, error: BaseException) -> PoolingError:
        """Return the error that stops the engine: ranks that disagree about what they compute cannot go on."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, timeout=REASON_TIMEOUT_S)
            if self.failure is not None:
                return self.failure
        summary = "a tensor-parallel computation failed, after which its processes cannot go on"
        stopped = EngineStopped(f"{summary}: {type(error).__name__}: {error}")
        stopped.http_message = summary
        return stopped

    def close(self) -> None:
        """Stop the processes: they exit when their socket is closed."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * EXIT_TIMEOUT_S)
        if self.is_cpu:
            torch.set_num_threads(self._num_threads)

    def _watch(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                for rank in range(1, len(self.devices)):
                    selector.register(self._start_rank(rank), selectors.EVENT_READ, rank)
                while selector.get_map():
                    for key, _ in selector.select():
                        sock, rank = key.fileobj, key.data
                        assert isinstance(sock, socket.socket)
                        if not self._read_message(sock, rank):
                            selector.unregister(sock)
        except Exception as error:
            self._fail(f"the processes of the model could not be started: {error}")
        finally:
            self._stop_processes()

    def _start_rank(self, rank: int) -> socket.socket:
        own, other = socket.socketpair()
        with other:
            environment = {"HF_HUB_OFFLINE": "1"}  # the first rank has downloaded everything
            if self.is_cpu:
                environment["OMP_NUM_THREADS"] = str(self._threads_per_rank)
            process = spawn_module(WORKER_MODULE, [other.fileno()], environment=environment)
        self.processes.append(process)
        num_threads = self._threads_per_rank if self.is_cpu else None
        send(own, Start(self._encoded_config, rank, len(self.devices), num_threads))
        with self._lock:
            self._sockets.append(own)
            if self._is_closing:  # the first rank has failed in the meantime
                own.shutdown(socket.SHUT_RDWR)
        return own

    def _read_message(self, sock: socket.socket, rank: int) -> bool:
        """Read a message of a rank; return False if it has exited."""
        message = receive_from_rank(sock)
        if message is None:
            code = self._wait(self.processes[rank - 1])
            self._fail(
                f"rank {rank} of the model (process {self.processes[rank - 1].pid}) exited with {describe_exit(code)}"
            )
            return False
        if isinstance(message, Failed):
            self._fail(f"rank {rank} of the model failed: {message.reason}")
            return True
        with self._changed:
            self._num_loaded += 1
            self.num_read_bytes[rank] = message.num_read_bytes
            self._changed.notify_all()
        return True

    def _fail(self, reason: str) -> None:
        with self._changed:
            if self._is_closing or self.failure is not None:
                return
            is_loading = self._num_loaded < len(self.devices) - 1
            self.failure = LoadError(reason) if is_loading else EngineStopped(reason)
            self.failure.http_message = "a process of the model exited"
            self._changed.notify_all()
        logger.error("%s", reason)
        with suppress(RuntimeError):
            self.group.abort()  # this rank may wait for the one that has exited
        self.on_failure(self.failure)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def _stop_processes(self) -> None:
        for sock in self._sockets:
            sock.close()
        for process in self.processes:
            self._wait(process)
