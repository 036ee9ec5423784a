"""Availability: whether the engine process answers, and requests that wait until it does again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from cenote.api.front_ends.remote_pending import RemotePending
from cenote.errors import DeadlineExceeded, EngineStopped, NotReady, PoolingError
from cenote.protocol.engine import EngineStatus

REPLAY_TIMEOUT_S = 60.0
# characters of requests that wait for an engine process; those of requests that it had before its end not counted
MAX_WAITING_CHARS = 256 * 1024**2

# of a model whose replicas have different states, while none answers
STATUS_ORDER: tuple[EngineStatus, ...] = ("restarting", "loading", "failed", "stopped")


class Availability:
    """The state of the link, what the supervisor reports, and the requests that wait for another engine process."""

    def __init__(self) -> None:
        self.status: EngineStatus = "loading"
        self.reason = ""
        self.is_available = False  # requests may be sent
        self.on_update: Callable[[], None] = lambda: None  # called when anything changes
        self.replay_timeout_s = REPLAY_TIMEOUT_S
        self.engine_number = 0  # of the engine process at the other end of the link
        self._num_exits = 0  # of engine processes, as reported by the supervisor
        self._reported: tuple[EngineStatus, str] = ("loading", "")  # by the supervisor
        self._is_draining = False
        self._num_waiting_chars = 0
        self._changed: asyncio.Future[None] | None = None  # done at the next change of the state

    @property
    def dead_error(self) -> PoolingError | None:
        if self.status == "ready":
            return None
        if self.status in ("loading", "restarting"):
            state = "is being restarted" if self.status == "restarting" else "is loading the model"
            reason = f" ({self.reason})" if self.reason else ""
            return make_state_error(NotReady, f"the engine {state}", reason, "; retry shortly")
        return make_state_error(
            EngineStopped, f"the engine has {self.status}", f": {self.reason}", "", "; the reason is in the server log"
        )

    def on_ready(self, engine_number: int) -> None:
        """The engine process at the other end of the link has loaded the model."""
        self.engine_number = engine_number
        self._set("ready", "")

    def on_down(self, reason: str) -> None:
        """The engine has stopped by itself; its process exits soon."""
        self._set("restarting", reason)

    def on_link_lost(self) -> None:
        if self.status == "ready":
            # the report of the supervisor may have arrived before the end of the link
            is_reported = self._reported[0] not in ("loading", "ready")
            self._set(*(self._reported if is_reported else ("restarting", "its process has exited")))

    def on_closed(self) -> None:
        """This front-end has closed its link: it exits."""
        self._set("stopped", "the server has shut down")

    def on_report(self, status: EngineStatus, reason: str = "") -> None:
        """The supervisor reports why the engine does not answer; the link itself tells when it does."""
        self._reported = status, reason
        if status == "ready" and self.status == "loading":
            self._set("restarting", "this front-end has just been started")  # its link follows
        if status != "ready" and self.status != "ready":
            self._set(status, reason)

    def on_exit(self, num_exits: int) -> None:
        """The supervisor has reported what was on the device; before that, the next process gets no requests."""
        self._num_exits = num_exits
        self._set(self.status, self.reason)

    def combine(self, replicas: Sequence[Availability]) -> None:
        """Take the state of all replicas of a model: it answers while one of them does."""
        if any(replica.is_available for replica in replicas):
            self._set("ready", "")
            return
        # a replica that is ready, but whose predecessor has not been reported yet, gets requests in a moment
        states: list[tuple[EngineStatus, str]] = [
            ("restarting" if replica.status == "ready" else replica.status, replica.reason) for replica in replicas
        ]
        self._set(*min(states, key=lambda state: STATUS_ORDER.index(state[0])))

    def start_draining(self) -> None:
        """Fail requests that wait: the server shuts down, and no other process may become ready in time."""
        self._is_draining = True
        self._set(self.status, self.reason)

    async def wait(self, deadline_at: float, call: RemotePending | None, num_chars: int) -> None:
        """Wait until requests may be sent, or `call` has its answer; raise if that does not happen in time."""
        started_at = time.monotonic()
        ends_at = started_at + self.replay_timeout_s
        if deadline_at:
            ends_at = min(ends_at, deadline_at)
        if call is None or not call.was_lost:
            self._check_waiting(num_chars)
        else:
            num_chars = 0
        self._num_waiting_chars += num_chars
        try:
            while not self.is_available and (call is None or not call.is_decided):
                self._check_may_return()
                now = time.monotonic()
                if now >= ends_at:
                    raise self._make_timeout_error(now - started_at, now - deadline_at if deadline_at else -1.0)
                await self.wait_for_change(ends_at - now)
        finally:
            self._num_waiting_chars -= num_chars

    async def wait_for_report(self, engine_number: int) -> None:
        """Wait until it is known what was on the device of a process that is lost, or only its link was lost."""
        ends_at = time.monotonic() + self.replay_timeout_s
        while not self.is_available and self._num_exits <= engine_number and self.status not in ("failed", "stopped"):
            if (remaining_s := ends_at - time.monotonic()) <= 0:
                return
            await self.wait_for_change(remaining_s)

    async def wait_for_change(self, timeout_s: float) -> None:
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._changed], timeout=timeout_s)

    def _check_may_return(self) -> None:
        """Raise if the engine will not answer soon."""
        if self.status not in ("restarting", "ready"):
            assert self.dead_error is not None, "it is ready or dead"
            raise self.dead_error
        if self._is_draining:
            raise make_state_error(
                NotReady,
                "the server is shutting down while its engine is down",
                f" ({self.reason})",
                "; retry on another instance",
            )

    def _make_timeout_error(self, waited_s: float, late_s: float) -> PoolingError:
        if late_s >= 0:
            return DeadlineExceeded.after(waited_s, late_s)
        summary = f"the engine has not been restarted after {waited_s:.1f} s"
        return make_state_error(NotReady, summary, f" ({self.reason})", "; retry shortly")

    def _check_waiting(self, num_chars: int) -> None:
        if self._num_waiting_chars + num_chars > MAX_WAITING_CHARS and self._num_waiting_chars:
            raise make_state_error(
                NotReady,
                "the engine is being restarted",
                f" ({self.reason})",
                f", and requests with {self._num_waiting_chars} characters wait for it; retry shortly",
            )

    def _set(self, status: EngineStatus, reason: str) -> None:
        self.status, self.reason = status, reason
        # a process is sent requests after the reports of all processes before it, and until the report of its own exit
        self.is_available = status == "ready" and self.engine_number == self._num_exits
        self.on_update()
        self.notify()

    def notify(self) -> None:
        """Wake up the requests that wait: perhaps one of them has its answer."""
        if self._changed is not None:
            self._changed.set_result(None)
            self._changed = None


def make_state_error(
    kind: type[PoolingError], summary: str, reason: str, advice: str, http_advice: str | None = None
) -> PoolingError:
    """Return an error with the reason for logs and callers in Python, which HTTP clients do not get."""
    error = kind(f"{summary}{reason}{advice}")
    error.http_message = f"{summary}{advice if http_advice is None else http_advice}"
    return error
