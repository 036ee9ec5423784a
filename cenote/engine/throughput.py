"""ThroughputEstimate: how many tokens a batch may have to take a given time, from the batches that ran."""

from __future__ import annotations

SMOOTHING = 0.3  # weight of the newest batch


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
