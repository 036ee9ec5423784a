"""LocalPending: a request in the process of its engine, which may have options for each of its inputs."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from cenote.engine.pending import Pending
from cenote.engine.tokenized_batch import ResolvedOptions, TokenizedBatch
from cenote.inputs.renderer import RenderSettings
from cenote.inputs.tokenized_inputs import Int64Array, RenderResult, TokenizedInputs
from cenote.protocol.requests import PoolRequest

ONLY_REQUEST = np.zeros(1, np.int64)  # of the only row of a request


class LocalPending(Pending):
    """The sink of the batches that its rendered inputs are submitted as."""

    _option_indices: Int64Array | None = None

    def __init__(self, request: PoolRequest, options: Many[ResolvedOptions], prompt: str | None) -> None:
        """`options`: one for all inputs, or one per input."""
        super().__init__(request)
        self.prompt = prompt
        self.options = options if len(options) == 1 else list(dict.fromkeys(options))
        if len(self.options) > 1:
            positions = {item: index for index, item in enumerate(self.options)}
            self._option_indices = np.array([positions[item] for item in options])
        self.settings: RenderSettings = request.tokenization, self.options[0].limits, prompt, request.role

    @property
    def adapters(self) -> set[str | None]:
        return {options.adapter for options in self.options}

    def make_batches(self, rendered: RenderResult, max_tokens: int) -> list[TokenizedBatch]:
        """Take what was rendered next; return a batch for each of its options."""
        if self._option_indices is None:
            return self._make_batch(self.options[0], *self.take_rendered(rendered), max_tokens)
        inputs, indices = self.take_rendered(rendered)
        batches = []
        for number, options in enumerate(self.options):
            offsets = np.flatnonzero(self._option_indices[indices] == number)
            batches += self._make_batch(options, inputs.select(offsets), indices[offsets], max_tokens)
        return batches

    def _make_batch(
        self, options: ResolvedOptions, inputs: TokenizedInputs, indices: Int64Array, max_tokens: int
    ) -> list[TokenizedBatch]:
        """Return a batch of the inputs; none if there are none."""
        if not len(indices):
            return []
        first_row = self.num_rows
        rows = self.add_rows(inputs, indices, max_tokens, normalizes=options.specs[0].options.use_activation)
        is_only = self.num_rows == self.num_inputs == 1
        return [
            TokenizedBatch(
                rows,
                ONLY_REQUEST if is_only else np.zeros(len(rows), np.int64),
                options,
                self,
                self.request.deadline_at,
                input_numbers=None if is_only else np.arange(first_row, self.num_rows),
                admitted_at=self.admitted_at,
            )
        ]
