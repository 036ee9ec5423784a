"""Group the prompts of a plugin into pool requests by task, and return their results in the order of the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cenote.errors import PoolingError
from cenote.outputs import PoolingOutput, PoolingRequestOutput
from cenote.protocol.input_types import Input
from cenote.protocol.params import PoolingParams, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from cenote.protocol.scheduling import SchedulingParams
from cenote.utils.arrays import Array


@dataclass(frozen=True, slots=True)
class PluginPoolRequests:
    """The pool requests for one request of a plugin; each prompt is in one, also if its task is a combined one."""

    requests: Sequence[PoolRequest]
    prompt_indices: Sequence[Sequence[int]]  # of each request

    @classmethod
    def from_prompts(
        cls,
        inputs: Sequence[Input],
        params: Sequence[PoolingParams],
        tasks: Sequence[Sequence[Task]],
        tokenization: TokenizationParams | None,
        scheduling: SchedulingParams,
    ) -> PluginPoolRequests:
        indices_by_tasks: dict[tuple[Task, ...], list[int]] = {}
        for index, prompt_tasks in enumerate(tasks):
            indices_by_tasks.setdefault(tuple(prompt_tasks), []).append(index)
        requests = [
            PoolRequest(
                task=request_tasks[0],
                extra_tasks=request_tasks[1:],
                inputs=[inputs[index] for index in indices],
                params=[replace(params[index], task=None) for index in indices],
                tokenization=tokenization or TokenizationParams(params[indices[0]].truncate_prompt_tokens),
                scheduling=scheduling,
            )
            for request_tasks, indices in indices_by_tasks.items()
        ]
        return cls(requests, list(indices_by_tasks.values()))

    def make_outputs(
        self, results: Sequence[Sequence[PoolResult | PoolingError]], prefix: str = ""
    ) -> list[PoolingRequestOutput]:
        """Return an output per prompt, in the order of the prompts; tensors of combined tasks are concatenated."""
        by_index: dict[int, PoolResult] = {}
        for indices, request_results in zip(self.prompt_indices, results, strict=True):
            for index, result in zip(indices, request_results, strict=True):
                assert isinstance(result, PoolResult), "the first error fails the request"
                by_index[index] = result
        return [
            PoolingRequestOutput(
                f"{prefix}{index}", PoolingOutput(_concat_data(result)), result.token_ids, result.num_input_tokens
            )
            for index, result in sorted(by_index.items())
        ]


def _concat_data(result: PoolResult) -> Array:
    if not result.extra_data:
        return result.data
    return np.concatenate([part.ravel() for part in (result.data, *result.extra_data.values())])
