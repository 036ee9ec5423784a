"""From token states to answers: method, head, activation, whatever mix of tasks a batch holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.batch import PackedBatch
from cenote.errors import BadRequest
from cenote.pooling.activations import CLASSIFICATION, normalize
from cenote.pooling.heads import Classifier
from cenote.pooling.methods import METHODS
from cenote.pooling.resolve import PoolingPlan
from cenote.request import Options, Task


class Ask(NamedTuple):
    """What one sequence of a batch is for."""

    task: Task
    options: Options


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the sequences that asked the same: one row each, or `counts` rows each."""

    members: list[int]
    rows: Tensor
    counts: list[int] | None = None


class Pooler(nn.Module):
    def __init__(
        self, plan: PoolingPlan, projector: nn.Module | None, classifier: Classifier | None, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.plan = plan
        self.projector = projector
        self.classifier = classifier
        self.dtype = dtype  # heads run in float32 unless told otherwise

    def forward(self, hidden: Tensor, batch: PackedBatch, asks: Sequence[Ask]) -> list[Answers]:
        groups: dict[Ask, list[int]] = {}
        for member, ask in enumerate(asks):
            groups.setdefault(ask, []).append(member)
        pooled: Tensor | None = None  # shared by all groups that want one vector per sequence
        answers = []
        for (task, options), members in groups.items():
            if task in ("embed", "classify"):
                if pooled is None:
                    pooled = self._pool(hidden, batch)
                states = pooled if len(members) == batch.size else pooled[members]
                answers.append(Answers(members, self._head(states, task, options)))
            else:
                answers.append(self._per_token(hidden, batch, task, options, members))
        return answers

    def _pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        parts = [METHODS[name](hidden, batch).to(self.dtype) for name in self.plan.sequence.value]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _per_token(
        self, hidden: Tensor, batch: PackedBatch, task: Task, options: Options, members: list[int]
    ) -> Answers:
        starts = batch.host_offsets
        pieces = [(starts[member], starts[member + 1]) for member in members]
        states, ids = hidden, batch.token_ids
        if len(members) < batch.size:
            states = torch.cat([hidden[start:end] for start, end in pieces])
            ids = torch.cat([ids[start:end] for start, end in pieces])
        rows = self._head(states.to(self.dtype), task, options)
        counts = [end - start for start, end in pieces]
        if options.step_tag_id is not None:
            kept = ids == options.step_tag_id
            rows = rows[kept]
            counts = [int(part.sum()) for part in torch.split(kept, counts)]
        return Answers(members, rows, counts)

    def _head(self, states: Tensor, task: Task, options: Options) -> Tensor:
        if task in ("embed", "token_embed"):
            return self._embedding(states, options)
        return self._logits(states, task, options)

    def _embedding(self, x: Tensor, options: Options) -> Tensor:
        if self.projector is not None:
            x = self.projector(x)
        x = _columns(x, options)
        if options.dimensions is not None:
            x = x[..., : options.dimensions]
        return normalize(x) if options.use_activation else x

    def _logits(self, x: Tensor, task: Task, options: Options) -> Tensor:
        if self.classifier is not None:
            # a sequence classifier's dense layer was trained on pooled states: a single token skips it in most families
            whole = task == "classify" or self.classifier.whole_per_token
            x = self.classifier(x) if whole else self.classifier.last_layer(x)
        x = _columns(x, options)
        if self.plan.logit_mean is not None:
            x = x - self.plan.logit_mean
        if self.plan.logit_sigma is not None:
            x = x / self.plan.logit_sigma
        return CLASSIFICATION[self.plan.activation.value](x) if options.use_activation else x


def _columns(x: Tensor, options: Options) -> Tensor:
    if options.returned_token_ids is None:
        return x
    if beyond := [column for column in options.returned_token_ids if not 0 <= column < x.shape[-1]]:
        raise BadRequest(
            f"returned_token_ids asks for columns {beyond[:5]}, the model gives {x.shape[-1]} (0 to {x.shape[-1] - 1})",
            param="returned_token_ids",
        )
    return x[..., list(options.returned_token_ids)]
