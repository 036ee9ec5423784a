"""Requests outlive engine processes: what is sent again, what runs alone, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cenote.api.wire.control_messages import EngineExited, ExitCause
from cenote.errors import EngineStopped, InputCrashedEngine

# so many processes end while the same input is alone on the device before it is to blame, by how they end: a device
# that hangs is often the reason itself, and who sends SIGKILL does not look at what runs
MAX_EXITS_ALONE: dict[ExitCause, int] = {"crash": 1, "hang": 2, "external": 3}
# crashes with nothing on the device, for example of the tokenizer: nobody knows which request is to blame
MAX_UNEXPLAINED_CRASHES = 3
# links that were lost although the engine process lived, for example because a message could not be read
MAX_LINK_LOSSES = 3


class EngineLost(Exception):
    """The engine process or the link to it is gone before a call was answered."""


class ReplayableCall:
    """A request over all engine processes that it is sent to.

    The numbers of its inputs are those of its first message.
    """

    suspect_digests: Sequence[bytes] = ()  # of its inputs, where they are known
    was_lost = False  # it has been sent before, to an engine process or over a link that is gone
    _is_lost = False  # the last attempt has ended so
    engine_id = -1  # of the replica that it was sent to last
    engine_number = -1  # of the engine process, among those of the replica
    error: Exception | None = None  # its answer, if it must not be sent again
    retry_until = 0.0  # monotonic; 0.0 unless the engine was overloaded
    suspects: frozenset[int] = frozenset()  # inputs that were on the device when an engine process died
    may_crash = False  # they may be the reason: nobody else has killed that process
    _exits_alone: Counter[tuple[int, ExitCause]] | None = None  # by number of the input that was alone
    _num_unexplained = 0
    _num_link_losses = 0

    @property
    def is_decided(self) -> bool:
        return self.error is not None

    def begin_attempt(self, engine_id: int, engine_number: int) -> None:
        """Called before it is sent; raises its error if it must not be sent again."""
        is_lost, self._is_lost = self._is_lost, False
        if is_lost and (engine_id, engine_number) == (self.engine_id, self.engine_number):
            self._num_link_losses += 1
            if self._num_link_losses > MAX_LINK_LOSSES:
                raise EngineStopped(
                    f"the link to the engine process was lost {self._num_link_losses} times with this request"
                )
        self.engine_id, self.engine_number = engine_id, engine_number
        if self.error is not None:
            raise self.error

    def mark_lost(self) -> None:
        """Called when an attempt has ended without an answer."""
        self.was_lost = self._is_lost = True

    def find_poison(self, numbers: Iterable[int], exited: EngineExited) -> list[int]:
        """Return those of the inputs on the device that are to blame; the others have to run alone."""
        poison = []
        for number in numbers:
            if exited.is_isolated and number in self.suspects and self._is_to_blame(number, exited):
                poison.append(number)
            else:
                self.suspects |= {number}
                self.may_crash |= exited.cause != "external"
        return poison

    def _is_to_blame(self, number: int, exited: EngineExited) -> bool:
        self._exits_alone = self._exits_alone or Counter()
        self._exits_alone[number, exited.cause] += 1
        return self._exits_alone[number, exited.cause] >= MAX_EXITS_ALONE[exited.cause]

    def on_unexplained_crash(self, exited: EngineExited) -> None:
        """The engine process has crashed with nothing on the device."""
        if self.engine_number == exited.num_exits - 1:
            self._num_unexplained += 1
        if self._num_unexplained >= MAX_UNEXPLAINED_CRASHES:
            self.set_error(
                EngineStopped(
                    f"the engine process crashed {self._num_unexplained} times before it ran this request, the last "
                    f"time: {exited.reason}"
                )
            )

    def set_error(self, error: Exception) -> None:
        self.error = self.error or error


def make_poison_error(index: int, reason: str) -> InputCrashedEngine:
    error = InputCrashedEngine(
        f"input {index} crashed the engine process ({reason}), also when it was alone on the device; it is not run "
        "again. The other inputs of the request can be sent without it"
    )
    error.index = index
    return error
