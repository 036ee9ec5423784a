"""The prompts of a plugin as one pool request for each choice of tasks, and the answers prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cenote.errors import PoolingError
from cenote.outputs import PoolingOutput, PoolingRequestOutput
from cenote.protocol.input_types import Input
from cenote.protocol.requests import Pooled, PoolingParams, PoolRequest, Task, Tokenization


@dataclass(frozen=True, slots=True)
class Work:
    """What is run for one request of a plugin. Every prompt is read once, whether its task is a combined one or not."""

    requests: Sequence[PoolRequest]
    places: Sequence[Sequence[int]]  # for each request, the numbers of its prompts

    @classmethod
    def of(
        cls,
        inputs: Sequence[Input],
        params: Sequence[PoolingParams],
        tasks: Sequence[Sequence[Task]],
        tokenization: Tokenization | None,
        priority: int,
    ) -> Work:
        places: dict[tuple[Task, ...], list[int]] = {}
        for place, wanted in enumerate(tasks):
            places.setdefault(tuple(wanted), []).append(place)
        requests = [
            PoolRequest(
                task=wanted[0],
                also=wanted[1:],
                inputs=[inputs[place] for place in chosen],
                params=[replace(params[place], task=None) for place in chosen],
                tokenization=tokenization or Tokenization(params[chosen[0]].truncate_prompt_tokens),
                priority=priority,
            )
            for wanted, chosen in places.items()
        ]
        return cls(requests, list(places.values()))

    def outputs(
        self, answers: Sequence[Sequence[Pooled | PoolingError]], prefix: str = ""
    ) -> list[PoolingRequestOutput]:
        """An output for every prompt, in their order; those of a combined task are laid end to end, in one row."""
        found: dict[int, Pooled] = {}
        for places, pooled in zip(self.places, answers, strict=True):
            for place, answer in zip(places, pooled, strict=True):
                assert isinstance(answer, Pooled), "the first error fails the request"
                found[place] = answer
        return [
            PoolingRequestOutput(
                f"{prefix}{place}", PoolingOutput(_joined(answer)), answer.token_ids, answer.num_input_tokens
            )
            for place, answer in sorted(found.items())
        ]


def _joined(answer: Pooled) -> torch.Tensor:
    if not answer.others:
        return answer.data
    return torch.cat([part.flatten() for part in (answer.data, *answer.others.values())])
