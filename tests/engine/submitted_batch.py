"""A batch of a front-end, submitted to an engine of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cenote.engine.engine import PoolingEngine
from cenote.engine.result_rows import GroupResult
from cenote.engine.tokenized_batch import TokenizedBatch
from cenote.errors import PoolingError
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.protocol.requests import PoolRequest
from tests.engine.conftest import wait_until


class SubmittedBatch:
    """The inputs of one call, and their results: the token ids that a device returned, or errors."""

    is_aborted = False

    def __init__(
        self,
        engine: PoolingEngine,
        token_ids: Sequence[Sequence[int]],
        *,
        call_id: int = 1,
        first_number: int = 0,
        is_isolated: bool = False,
    ) -> None:
        lengths = np.array(list(map(len, token_ids)))
        self.results: dict[int, Any] = {}
        self.num_inputs = len(token_ids)
        self.batch = TokenizedBatch(
            TokenizedInputs.from_ids(np.concatenate(token_ids).astype(np.int32), lengths, lengths),
            np.zeros(len(token_ids), np.int64),
            engine.request_checks.resolve_options(PoolRequest(task="embed", inputs=())),
            self,
            call_ids=np.array([call_id]),
            input_numbers=np.arange(len(token_ids)) + first_number,
            is_isolated=is_isolated,
        )
        engine.core.submit(self.batch)

    def on_started(self, now: float) -> None: ...

    def on_finished(self, batch: TokenizedBatch) -> None: ...

    def on_results(self, batch: TokenizedBatch, results: Sequence[GroupResult]) -> None:
        for group in results:
            for index, row in zip(group.indices.tolist(), group.rows[0].unbind(), strict=True):
                self.results[index] = row.astype(int).tolist()

    def on_error(self, batch: TokenizedBatch, index: int, error: PoolingError) -> None:
        self.results |= dict.fromkeys(range(self.num_inputs) if index < 0 else [index], error)

    def wait(self) -> list[Any]:
        wait_until(lambda: len(self.results) == self.num_inputs)
        return [self.results[index] for index in range(self.num_inputs)]
