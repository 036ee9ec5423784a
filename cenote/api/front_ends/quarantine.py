"""Quarantine: digests of inputs that may crash an engine process, and of those that have done so twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

import numpy as np

from cenote.inputs.tokenized_inputs import TokenizedInputs

# inputs that have crashed an engine process are refused for this time: clients may send them again
POISON_TTL_S = 300.0
MAX_POISON = 1024
DIGEST_BYTES = 16


class Quarantine:
    """Suspects are inputs of requests in flight that run alone; poison is refused at once."""

    def __init__(self, on_poison: Callable[[list[bytes], str], None] = lambda digests, reason: None) -> None:
        self.on_poison = on_poison  # called with what was found here, for other front-ends
        self.suspects: Counter[bytes] = Counter()
        self._poison: dict[bytes, tuple[float, str]] = {}  # end of the refusal and exit reason of the engine process
        self._poison_until = 0.0  # end of the last refusal

    @property
    def is_empty(self) -> bool:
        if self._poison and time.monotonic() > self._poison_until:
            self._poison.clear()
        return not self.suspects and not self._poison

    def add_suspects(self, digests: Iterable[bytes]) -> None:
        self.suspects.update(digests)

    def remove_suspects(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self.suspects[digest] -= 1
            if self.suspects[digest] <= 0:
                del self.suspects[digest]

    def is_suspect(self, digest: bytes) -> bool:
        return digest in self.suspects

    def report_poison(self, digests: list[bytes], reason: str) -> None:
        """Refuse inputs that have crashed the engine process, here and in other front-ends."""
        self.add_poison(digests, reason)
        self.on_poison(digests, reason)

    def add_poison(self, digests: Sequence[bytes], reason: str) -> None:
        ends_at = self._poison_until = time.monotonic() + POISON_TTL_S
        for digest in digests:
            self._poison[digest] = ends_at, reason
        while len(self._poison) > MAX_POISON:
            del self._poison[next(iter(self._poison))]

    def find_poison(self, digest: bytes) -> str | None:
        """Return why an input is refused; None if it is not."""
        if (entry := self._poison.get(digest)) is None:
            return None
        ends_at, reason = entry
        if time.monotonic() < ends_at:
            return reason
        del self._poison[digest]
        return None


def digest_inputs(inputs: TokenizedInputs, rows: Iterable[int]) -> list[bytes]:
    """Return the digests of some inputs: of everything that the model receives."""
    ends = inputs.cu_seqlens.tolist()
    digests = []
    for row in rows:
        digest = blake2b(inputs.token_ids[ends[row] : ends[row + 1]].tobytes(), digest_size=DIGEST_BYTES)
        digest.update(np.ascontiguousarray(inputs.metadata[row : row + 1]).tobytes())
        if inputs.row_mask is not None:
            digest.update(inputs.row_mask[ends[row] : ends[row + 1]].tobytes())
        if inputs.images is not None and (images := inputs.images[row]) is not None:
            digest.update(images.cache_key)
        if inputs.operands is not None and (operand := inputs.operands[row]) is not None:
            digest.update(operand.tobytes())
        digests.append(digest.digest())
    return digests
