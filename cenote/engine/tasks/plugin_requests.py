"""The prompts of a plugin as one pool request for each choice of tasks, and the answers prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cenote.errors import PoolingError
from cenote.outputs import PoolingOutput, PoolingRequestOutput
from cenote.protocol.input_types import Input
from cenote.protocol.params import PoolingParams, Task, TokenizationParams
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult


@dataclass(frozen=True, slots=True)
class PluginPoolRequests:
    """What is run for one request of a plugin. Every prompt is read once, whether its task is a combined one or not."""

    requests: Sequence[PoolRequest]
    prompt_indices: Sequence[Sequence[int]]  # for each request, the numbers of its prompts

    @classmethod
    def from_prompts(
        cls,
        inputs: Sequence[Input],
        params: Sequence[PoolingParams],
        tasks: Sequence[Sequence[Task]],
        tokenization: TokenizationParams | None,
        priority: int,
    ) -> PluginPoolRequests:
        places: dict[tuple[Task, ...], list[int]] = {}
        for place, wanted in enumerate(tasks):
            places.setdefault(tuple(wanted), []).append(place)
        requests = [
            PoolRequest(
                task=wanted[0],
                extra_tasks=wanted[1:],
                inputs=[inputs[place] for place in chosen],
                params=[replace(params[place], task=None) for place in chosen],
                tokenization=tokenization or TokenizationParams(params[chosen[0]].truncate_prompt_tokens),
                priority=priority,
            )
            for wanted, chosen in places.items()
        ]
        return cls(requests, list(places.values()))

    def make_outputs(
        self, results: Sequence[Sequence[PoolResult | PoolingError]], prefix: str = ""
    ) -> list[PoolingRequestOutput]:
        """An output for every prompt, in their order; those of a combined task are laid end to end, in one row."""
        found: dict[int, PoolResult] = {}
        for places, pooled in zip(self.prompt_indices, results, strict=True):
            for place, answer in zip(places, pooled, strict=True):
                assert isinstance(answer, PoolResult), "the first error fails the request"
                found[place] = answer
        return [
            PoolingRequestOutput(
                f"{prefix}{place}", PoolingOutput(_concat_data(answer)), answer.token_ids, answer.num_input_tokens
            )
            for place, answer in sorted(found.items())
        ]


def _concat_data(result: PoolResult) -> torch.Tensor:
    if not result.extra_data:
        return result.data
    return torch.cat([part.flatten() for part in (result.data, *result.extra_data.values())])
