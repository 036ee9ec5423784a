"""What is on the device of an engine process, in memory that outlives it: which calls may have crashed it."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, NamedTuple

from cenote.utils.shared_memory import make_shared_memory

if TYPE_CHECKING:
    from cenote.engine.engine_loop import EngineLoop
    from cenote.engine.sequence_group import ScheduledBatch

# each engine loop has two slots: asynchronous devices have one batch ahead; a model with routes has several loops
SLOTS_PER_LOOP, MAX_LOOPS = 2, 4
NUM_SLOTS = SLOTS_PER_LOOP * MAX_LOOPS
SLOT_ENTRIES = 16384  # inputs of a batch
# heads: number of entries of each slot, negative if the batch is isolated; then the number of finished batches
NUM_HEADS = NUM_SLOTS + 1
TABLE_BYTES = 8 * (NUM_HEADS + NUM_SLOTS * 2 * SLOT_ENTRIES)


def make_device_table() -> int:
    """Return the descriptor of an empty table; it vanishes with the last process that has it."""
    return make_shared_memory(TABLE_BYTES)


class DeviceTable:
    def __init__(self, fd: int) -> None:
        memory = memoryview(mmap.mmap(fd, TABLE_BYTES)).cast("q")
        self.heads = memory[:NUM_HEADS]
        self.entries = memory[NUM_HEADS:]  # of each slot: call ids, then the numbers of the inputs

    def read(self) -> OnDevice:
        """Return what a process that has exited left on its device."""
        counts = self.heads[:NUM_SLOTS].tolist()
        used = [slot for slot, count in enumerate(counts) if count]
        calls: list[tuple[int, int]] = []
        for slot in used:
            start, count = 2 * SLOT_ENTRIES * slot, abs(counts[slot])
            columns = [self.entries[first : first + count].tolist() for first in (start, start + SLOT_ENTRIES)]
            calls += zip(*columns, strict=True)
        return OnDevice(calls, len(used) == 1 and counts[used[0]] < 0, self.heads[NUM_SLOTS])


class OnDevice(NamedTuple):
    calls: list[tuple[int, int]]  # call id and number of the input
    is_isolated: bool  # one input, which was known to be able to crash the process
    num_finished: int  # batches that the process had finished


NOTHING = OnDevice([], False, 0)


class DeviceRecorder:
    """BatchRecorder of one engine loop: about 5 microseconds for a batch of 64 inputs on an ARM Neoverse-N1."""

    def __init__(self, table: DeviceTable, loop_number: int) -> None:
        import numpy as np  # here: the supervisor, which only reads tables, starts faster without

        self._heads = table.heads
        self._entries = np.frombuffer(table.entries, np.int64).reshape(NUM_SLOTS, 2, SLOT_ENTRIES)
        self._first_slot = SLOTS_PER_LOOP * loop_number

    def attach(self, loop: EngineLoop) -> None:
        loop.scheduler.max_num_seqs = min(loop.scheduler.max_num_seqs, SLOT_ENTRIES)
        loop.recorder = self

    def record(self, batch: ScheduledBatch) -> None:
        slot = self._first_slot + batch.slot
        self._heads[slot] = 0  # never entries of two batches
        call_ids, input_numbers = batch.get_call_refs()
        count = min(len(call_ids), SLOT_ENTRIES)  # more only with duplicates
        self._entries[slot, 0, :count] = call_ids[:count]
        self._entries[slot, 1, :count] = input_numbers[:count]
        self._heads[slot] = -count if batch.is_isolated else count

    def clear(self, slot: int) -> None:
        self._heads[self._first_slot + slot] = 0
        self._heads[NUM_SLOTS] += 1
