"""EngineExecutors: the threads for work around the model, apart by kind, so that none waits for another."""

from __future__ import annotations

from cenote.utils.bounded_executor import BoundedExecutor

# a text of this length takes about 50 ms to tokenize
MAX_SHORT_CHARS = 1 << 18


class EngineExecutors:
    def __init__(self) -> None:
        self.tokenize = BoundedExecutor("tokenize", num_threads=2, max_waiting=1024)
        # one thread: texts of many megabytes take gigabytes of memory each, and seconds
        self.tokenize_long = BoundedExecutor("tokenize-long", num_threads=1, max_waiting=16)
        self.scoring = BoundedExecutor("scoring", num_threads=4, max_waiting=1024)
        self.adapters = BoundedExecutor("adapters", num_threads=4, max_waiting=64)

    @property
    def all(self) -> list[BoundedExecutor]:
        return [self.tokenize, self.tokenize_long, self.scoring, self.adapters]

    def select_tokenizer(self, num_chars: int) -> BoundedExecutor:
        """Return where /tokenize and /detokenize run: short ones do not wait for long ones."""
        return self.tokenize if num_chars <= MAX_SHORT_CHARS else self.tokenize_long

    def close(self) -> None:
        for executor in self.all:
            executor.close()
