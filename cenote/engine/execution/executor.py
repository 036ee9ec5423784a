"""Executors run batches: the protocol, and EchoExecutor for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from cenote.engine.result_delivery import BatchOutput
from cenote.engine.result_rows import RaggedRows
from cenote.engine.sequence_group import ScheduledBatch
from cenote.inputs.tokenized_inputs import TokenizedInputs


class Executor(Protocol):
    """Runs batches on a device."""

    is_async: bool  # whether `start` returns before the device has finished

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        """Start a batch; return a function that waits for its results on the host."""
        ...

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        """Whether `start` takes microseconds, in any thread."""
        ...


class EchoExecutor:
    """Returns the token ids as results: an executor without a model, for tests of the engine."""

    is_async = False

    def __init__(self, fault: Callable[[ScheduledBatch], None] = lambda batch: None) -> None:
        self.fault = fault  # called with every batch; may raise, sleep or record it
        self.num_batches = 0

    def start(self, batch: ScheduledBatch) -> Callable[[], BatchOutput]:
        self.num_batches += 1
        self.fault(batch)
        return lambda: BatchOutput(
            {spec: _echo_token_ids(batch.select(spec).inputs) for specs in set(batch.specs) for spec in specs}
        )

    def is_prepared(self, batch: ScheduledBatch) -> bool:
        return False


def _echo_token_ids(inputs: TokenizedInputs) -> RaggedRows:
    return RaggedRows.from_counts(inputs.token_ids.astype(np.float32), inputs.lengths.tolist())
