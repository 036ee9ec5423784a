"""How fast the engine computes, from the batches that ran: by length for the scheduler, altogether for admission."""

from __future__ import annotations

SMOOTHING = 0.3  # weight of the newest batch, or window
WINDOW_S = 0.25  # device time of the batches whose speed is measured together
# the engine is busy while so many seconds of work are on the device or wait for it: batches are smaller without, and
# their fixed costs make the device look slower than it is
BUSY_S = 0.1
# a batch is late when it takes so much longer than its tokens do at the measured rate: the device may hang
LATE_S, LATE_FACTOR = 0.5, 2


class ThroughputEstimate:
    """Moving averages by length class: attention makes the tokens of long sequences more expensive."""

    def __init__(self, batch_s: float) -> None:
        self.batch_s = batch_s  # time of the shortest batches whose size is wanted
        self._rates: dict[int, float] = {}  # by bit length of the mean sequence length

    def record(self, num_tokens: int, num_seqs: int, elapsed_s: float) -> None:
        length = max(1, num_tokens // max(1, num_seqs))
        known = self.max_tokens(length, self.batch_s)
        # fixed costs dominate the time of small batches, which would make larger ones look slower than they are
        is_small = elapsed_s < self.batch_s / 4 and (known is None or num_tokens < known / 2)
        if is_small or elapsed_s <= 0:
            return
        rate, key = num_tokens / elapsed_s, length.bit_length()
        self._rates[key] = rate if key not in self._rates else (1 - SMOOTHING) * self._rates[key] + SMOOTHING * rate

    def max_tokens(self, length: int, seconds: float) -> int | None:
        """Return the tokens of sequences of about this length that take this long; None if no batch has run yet."""
        if not self._rates:
            return None
        key = length.bit_length()
        if key not in self._rates:
            key = min(self._rates, key=lambda other: abs(other - key))
        return int(self._rates[key] * seconds)


class EngineRate:
    """Tokens that the engine computes per second while enough of them wait.

    A device with little to do computes what it gets, not what it could: such times never lower the rate.
    """

    def __init__(self, initial: float = 0.0) -> None:
        self.tokens_per_s = initial  # until the engine has been busy; 0.0: not known
        self._is_measured = False
        self._num_tokens, self._seconds, self._token_seconds = 0, 0.0, 0.0  # of the window
        self._last_ended_at, self._was_late = 0.0, False

    def record(self, num_tokens: int, started_at: float, ended_at: float, num_waiting: int) -> None:
        """Record a batch, and how many tokens wait for the next one."""
        elapsed_s = ended_at - max(started_at, self._last_ended_at)  # it may have waited for the batch before
        self._last_ended_at = ended_at
        # after one late batch the process may have been stopped meanwhile; after two the device has become slower
        was_late, self._was_late = self._was_late, self.is_late(num_tokens, elapsed_s)
        if self._was_late and not was_late:
            return
        self._num_tokens += num_tokens
        self._seconds += elapsed_s
        self._token_seconds += (num_tokens + num_waiting) * elapsed_s
        if self._seconds >= WINDOW_S:
            self._end_window(self._num_tokens / self._seconds, self._token_seconds / self._seconds)
            self._num_tokens, self._seconds, self._token_seconds = 0, 0.0, 0.0

    def is_late(self, num_tokens: int, elapsed_s: float) -> bool:
        """Whether so many tokens on the device should have been computed in this time; False if that is not known."""
        rate = self.tokens_per_s
        return rate > 0.0 and elapsed_s > LATE_S + LATE_FACTOR * num_tokens / rate

    def _end_window(self, rate: float, in_flight: float) -> None:
        known = self.tokens_per_s
        is_busy = in_flight >= BUSY_S * (max(rate, known) if self._is_measured else rate)
        if is_busy and not self._is_measured:
            self.tokens_per_s, self._is_measured = rate, True
        elif is_busy or 0.0 < known < rate:
            self.tokens_per_s += SMOOTHING * (rate - known)
