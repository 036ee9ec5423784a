"""What is in flight in all front-ends: counters in shared memory, a row per front-end which only that one writes."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Final, Literal, get_args

from cenote.config.options import MAX_PROCESSES
from cenote.utils.shared_memory import make_shared_memory

RefusalReason = Literal[
    "queue",  # too many tokens in flight
    "share",  # the key uses its share of the queue
    "key_queue",  # max-queue-tokens of the key
    "rate_limit",  # max-tokens-per-minute of the key
    "bytes",  # too many bytes in flight
    "memory",  # the memory of the server is nearly full
    "request_tokens",  # the request alone has more tokens than the queue
    "request_bytes",  # the request alone needs more bytes than may be in flight
    "deadline",  # its deadline would pass, or has passed
    "connections",  # more than --max-connections
    "descriptors",  # more connections than files may be open
]
REASONS: Final[tuple[RefusalReason, ...]] = get_args(RefusalReason)
NUM_SIZE_CLASSES = 6  # of requests by tokens; class 0 is the interactive lane
NUM_TENANTS = 1024  # slots of API keys
NUM_SLOTS = 256  # of models

# columns of a row, float64: bytes in flight, the share of its open files and of the memory that is in use, then models,
# then tenants
BYTES = 0
OPEN_FILES, MEMORY = 1, 2
MODELS = 3
# columns of a model: tokens in flight by size class; interactive requests in flight; the fields of EngineSpeed, which
# the supervisor writes in the first row; monotonic time of the last request; requests refused so far by reason; tokens
# in flight by replica
QUEUED = 0
REQUESTS = QUEUED + NUM_SIZE_CLASSES
SPEED = REQUESTS + 1
USED_AT = SPEED + 3
REFUSED = USED_AT + 1
REPLICA_TOKENS = REFUSED + len(REASONS)
MODEL_COLUMNS = REPLICA_TOKENS + MAX_PROCESSES
# columns of a tenant: tokens in flight by lane, monotonic time of its last request, minute and the tokens in it
TENANTS = MODELS + NUM_SLOTS * MODEL_COLUMNS
TENANT_COLUMNS = 5
TENANT_SEEN, TENANT_MINUTE, TENANT_MINUTE_TOKENS = 2, 3, 4
NUM_COLUMNS = TENANTS + NUM_TENANTS * TENANT_COLUMNS


NO_TOKENS = memoryview(bytes(8 * MAX_PROCESSES)).cast("d")


def find_model_column(slot: int) -> int:
    """Return the first column of a model."""
    return MODELS + slot * MODEL_COLUMNS


def make_counters_file(num_rows: int) -> int:
    """Return the descriptor of shared memory for so many front-ends."""
    return make_shared_memory(8 * NUM_COLUMNS * num_rows)


class Counters:
    """The row of one front-end, and sums over the rows of all."""

    def __init__(self, fd: int = -1, num_rows: int = 1, row: int | None = 0) -> None:
        """Without a descriptor the memory is private: one process serves alone. `row` None: only read the sums,
        and write the speed of engines.
        """
        self._values = memoryview(mmap.mmap(fd, 8 * NUM_COLUMNS * num_rows)).cast("d")
        self.num_rows = num_rows
        self._columns: dict[int, memoryview[float]] = {}  # of those that were summed
        if row is None:
            self.own = memoryview(bytearray(8 * NUM_COLUMNS)).cast("d")
        else:
            self.own = self._values[row * NUM_COLUMNS : (row + 1) * NUM_COLUMNS]

    def total(self, column: int) -> float:
        """Return the sum of a column over all front-ends."""
        if self.num_rows == 1:
            return self._values[column]
        rows = self._columns.get(column)
        if rows is None:
            rows = self._columns[column] = self._values[column::NUM_COLUMNS]
        return sum(rows)

    def total_up_to(self, column: int, count: int) -> float:
        """Return the sum of `count` columns over all front-ends."""
        if self.num_rows == 1:
            return sum(self._values[column : column + count])
        return sum(self.total(column + index) for index in range(count))

    def rows(self, column: int) -> list[float]:
        """Return a column of every front-end."""
        return list(self._values[column::NUM_COLUMNS])

    def read_speed(self, column: int) -> Sequence[float]:
        """Return the fields of an EngineSpeed, which are in the first row only."""
        return self._values[column : column + 3].tolist()

    def write_speed(self, column: int, values: Sequence[float]) -> None:
        for index, value in enumerate(values, column):
            self._values[index] = value

    def clear_row(self, row: int) -> None:
        """Forget what a front-end had in flight when it died; what it has done and refused stays counted."""
        values = self._values[row * NUM_COLUMNS : (row + 1) * NUM_COLUMNS]
        values[BYTES] = values[OPEN_FILES] = values[MEMORY] = 0.0
        for model in range(MODELS, TENANTS, MODEL_COLUMNS):
            for column in range(QUEUED, REQUESTS + 1):
                values[model + column] = 0.0
            values[model + REPLICA_TOKENS : model + MODEL_COLUMNS] = NO_TOKENS
        for tenant in range(TENANTS, NUM_COLUMNS, TENANT_COLUMNS):
            values[tenant] = values[tenant + 1] = 0.0

    def clear_slot(self, slot: int) -> None:
        """Forget all that front-ends have counted for the model that had this slot before."""
        first = find_model_column(slot)
        for row in range(self.num_rows):
            for column in range(first, first + MODEL_COLUMNS):
                self._values[row * NUM_COLUMNS + column] = 0.0
