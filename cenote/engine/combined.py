"""The prompts of a plugin as one pool request per task, and the answers put together again, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cenote.errors import PoolingError
from cenote.outputs import PoolingOutput, PoolingRequestOutput
from cenote.request import Input, Pooled, PoolingParams, PoolRequest, Task, Tokenization


@dataclass(frozen=True, slots=True)
class Work:
    """What is run for one request of a plugin. A combined task has every prompt read once for each of its parts."""

    tasks: Sequence[Sequence[Task]]  # of every prompt
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
        places: dict[Task, list[int]] = {}
        for place, wanted in enumerate(tasks):
            for task in wanted:
                places.setdefault(task, []).append(place)
        requests = [
            PoolRequest(
                task=task,
                inputs=[inputs[place] for place in chosen],
                params=[_for_part(params[place], task, len(tasks[place])) for place in chosen],
                tokenization=tokenization or Tokenization(params[chosen[0]].truncate_prompt_tokens),
                priority=priority,
            )
            for task, chosen in places.items()
        ]
        return cls(tasks, requests, list(places.values()))

    def outputs(
        self, answers: Sequence[Sequence[Pooled | PoolingError]], prefix: str = ""
    ) -> list[PoolingRequestOutput]:
        """An output for every prompt, in their order; those of a combined task are laid end to end, in one row."""
        found: dict[tuple[int, Task], Pooled] = {}
        for request, places, pooled in zip(self.requests, self.places, answers, strict=True):
            for place, answer in zip(places, pooled, strict=True):
                assert isinstance(answer, Pooled), "the first error fails the request"
                found[place, request.task] = answer
        outputs = []
        for place, wanted in enumerate(self.tasks):
            parts = [found[place, task] for task in wanted]
            data = parts[0].data if len(parts) == 1 else torch.cat([part.data.flatten() for part in parts])
            first = parts[0]
            outputs.append(
                PoolingRequestOutput(f"{prefix}{place}", PoolingOutput(data), first.token_ids, first.num_input_tokens)
            )
        return outputs


def _for_part(params: PoolingParams, task: Task, num_parts: int) -> PoolingParams:
    """In a combined task the size of embeddings is said to all parts, and meant for those that embed."""
    meant = num_parts == 1 or task in ("embed", "token_embed")
    return replace(params, task=task, dimensions=params.dimensions if meant else None)
