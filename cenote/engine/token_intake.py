"""TokenIntake: how inputs that front-ends have tokenized enter an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cenote.engine.tokenized_batch import ResolvedOptions, TokenizedBatch
from cenote.errors import BadRequest
from cenote.inputs.tokenized_inputs import TokenizedInputs
from cenote.protocol.params import Role
from cenote.protocol.requests import PoolRequest

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine


class TokenIntake:
    """Checks options and arrays of front-ends, and submits batches to the scheduler of one engine."""

    def __init__(self, engine: PoolingEngine) -> None:
        self.engine = engine

    @property
    def is_busy(self) -> bool:
        return self.engine.loop.is_busy

    def resolve_options(self, request: PoolRequest) -> ResolvedOptions:
        """Check the options of a request without inputs."""
        return self._find_engine(request.role).admission.resolve_options(request)

    def _find_engine(self, role: Role | None) -> PoolingEngine:
        return self.engine if role is None else self.engine.routes.get(role, self.engine)

    def get_max_tokens(self, options: ResolvedOptions) -> int:
        return self._find_engine(options.role).max_model_len

    def check(self, inputs: TokenizedInputs, options: ResolvedOptions) -> None:
        """Raise if arrays are not valid for the model: the device would read outside of its tables."""
        engine = self._find_engine(options.role)
        lengths, ids = inputs.lengths, inputs.token_ids
        max_model_len, vocab_size = engine.max_model_len, engine.renderer.vocab_size
        shortest, longest = (len(ids), len(ids)) if len(lengths) == 1 else (lengths.min(), lengths.max())
        least = 0 if engine.renderer.accepts_empty else 1
        if longest > max_model_len and inputs.images is not None:  # a tower sets the length of an image, see Renderer
            longest = lengths[[images is None for images in inputs.images]].max(initial=0)
        if shortest < least or longest > max_model_len:
            raise BadRequest(f"each input must have between {least} and {max_model_len} tokens")
        if ids.view(np.uint32).max(initial=0) >= vocab_size:  # negative ids are the largest as unsigned numbers
            raise BadRequest(f"token ids must be between 0 and {vocab_size - 1}")

    def submit(self, batch: TokenizedBatch) -> None:
        """Queue a batch whose inputs have been checked; its sink gets the results."""
        engine = self._find_engine(batch.options.role)
        if (adapter := batch.options.adapter) is not None:
            engine.adapters.resolve(adapter, 1)  # it may have been unloaded since the options were resolved
        engine.admit_batch(batch)
        if (group := engine.tokenizer_worker.dedup.add(batch)) is not None:
            engine.loop.submit([group])
