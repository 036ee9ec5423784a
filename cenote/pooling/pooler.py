"""From token states to answers: method, head, activation, whatever mix of tasks a batch holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import BadRequest
from cenote.kernels.max_sim import max_sims
from cenote.packed_batch import PackedBatch
from cenote.pooling.activations import CLASSIFICATION, normalize
from cenote.pooling.heads import Heads
from cenote.pooling.methods import METHODS
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.sparse import pairs_by_token, pairs_of_vectors
from cenote.protocol.requests import Options, Task


class Ask(NamedTuple):
    """What one sequence of a batch is for."""

    task: Task
    options: Options
    compared: bool = False  # with a query that the sequence brings along: the answer is one number


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to the sequences that asked the same: one row each, or `counts` rows each."""

    ask: Ask
    members: list[int]
    rows: Tensor
    counts: list[int] | None = None


class Pooler(nn.Module):
    def __init__(self, plan: PoolingPlan, heads: Heads, dtype: torch.dtype) -> None:
        super().__init__()
        self.plan = plan
        self.heads = heads
        self.dtype = dtype  # heads run in float32 unless told otherwise

    def forward(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        asks: Sequence[Sequence[Ask]],
        queries: Sequence[Tensor | None] = (),
    ) -> list[Answers]:
        """The answers to all that is asked of every sequence of a batch, those that ask the same together.

        `queries` are the rows that sequences are compared with, where they are.
        """
        groups: dict[Ask, list[int]] = {}
        first = 0
        for several, neighbours in groupby(asks):  # mostly the very same object, which is quick to compare
            members = list(range(first, first + len(list(neighbours))))
            for ask in several:
                groups.setdefault(ask, []).extend(members)
            first += len(members)
        pooled: Tensor | None = None  # shared by all groups that want one vector per sequence
        weighed: dict[tuple[int, ...], Tensor] = {}  # over the vocabulary, by the sequences they are of
        answers = []
        for ask, members in groups.items():
            task, options, compared = ask
            if task == "sparse_embed" or (task == "embed" and self.heads.vocabulary is not None):
                rows, counts = self._sparse(hidden, batch, task, members, weighed)
                answers.append(Answers(ask, members, rows, counts))
            elif task in ("embed", "classify"):
                if pooled is None:
                    pooled = self._pool(hidden, batch)
                states = pooled if len(members) == batch.size else pooled[members]
                answers.append(Answers(ask, members, self._head(states, task, options)))
            else:
                rows_of_tokens = self._per_token(hidden, batch, ask, members)
                answers.append(_matched(rows_of_tokens, queries) if compared else rows_of_tokens)
        return answers

    def _pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        if (classifier := self.heads.classifier) is not None and classifier.dense_first:
            hidden = classifier.first_layers(hidden.to(self.dtype))
        parts = [METHODS[name](hidden, batch).to(self.dtype) for name in self.plan.sequence.value]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _sparse(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        task: Task,
        members: list[int],
        weighed: dict[tuple[int, ...], Tensor],
    ) -> tuple[Tensor, list[int] | None]:
        """Weights over the vocabulary: all of them as one vector, or those above zero as pairs of id and weight."""
        if self.heads.vocabulary is None:
            assert self.heads.classifier is not None, "a weight for every token comes from the classifier"
            weights = self._logits(hidden.to(self.dtype), "token_classify", Options())[:, 0]
            return pairs_by_token(weights, batch, members, self.plan.not_words)
        if (vectors := weighed.get(tuple(members))) is None:
            vectors = weighed[tuple(members)] = self.heads.vocabulary(hidden, batch, members)
        return (vectors, None) if task == "embed" else pairs_of_vectors(vectors)

    def _per_token(self, hidden: Tensor, batch: PackedBatch, ask: Ask, members: list[int]) -> Answers:
        task, options = ask.task, ask.options
        starts = batch.host_offsets
        pieces = [(starts[member], starts[member + 1]) for member in members]
        counts = [end - start for start, end in pieces]
        kept = self._kept(batch, task, options)
        if len(members) < batch.size:
            hidden = torch.cat([hidden[start:end] for start, end in pieces])
            kept = None if kept is None else torch.cat([kept[start:end] for start, end in pieces])
        if kept is not None:
            hidden = hidden[kept]
            counts = [int(part.sum()) for part in torch.split(kept, counts)]
        rows = self._head(hidden.to(self.dtype), task, options)
        return Answers(ask, members, rows[:, 0] if task in self.plan.scalar_tasks else rows, counts)

    def _kept(self, batch: PackedBatch, task: Task, options: Options) -> Tensor | None:
        """[tokens], which of them the answer has a row for; None means all."""
        kept = batch.kept
        if options.step_tag_id is not None:
            tagged = batch.token_ids == options.step_tag_id
            kept = tagged if kept is None else kept & tagged
        first, last = self.plan.borders.get(task, (None, None))
        for border, at in ((first, batch.offsets[:-1]), (last, batch.offsets[1:] - 1)):
            if border is not None:
                kept = torch.ones_like(batch.token_ids, dtype=torch.bool) if kept is None else kept.clone()
                kept[at] &= batch.token_ids[at] != border
        return kept

    def _head(self, states: Tensor, task: Task, options: Options) -> Tensor:
        if task in ("embed", "token_embed"):
            return self._embedding(states, task, options)
        return self._logits(states, task, options)

    def _embedding(self, x: Tensor, task: Task, options: Options) -> Tensor:
        projector = self.heads.projector if task == "embed" else self.heads.token_projector
        if projector is not None:
            x = projector(x)
        if (columns := _columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        if options.dimensions is not None:
            x = x[..., : options.dimensions]
        return normalize(x) if options.use_activation else x

    def _logits(self, x: Tensor, task: Task, options: Options) -> Tensor:
        if (classifier := self.heads.classifier) is not None:
            # a sequence classifier's dense layer was trained on pooled states: a single token skips it in most families
            whole = not classifier.dense_first if task == "classify" else classifier.whole_per_token
            x = x.to(classifier.classifier.weight.dtype)
            columns = _columns(options, classifier.classifier.out_features)
            x = (classifier(x, columns) if whole else classifier.last_layer(x, columns)).to(self.dtype)
        elif (columns := _columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        if self.plan.logit_mean is not None:
            x = x - self.plan.logit_mean
        if self.plan.logit_sigma is not None:
            x = x / self.plan.logit_sigma
        return CLASSIFICATION[self.plan.activation.value](x) if options.use_activation else x


def _matched(documents: Answers, queries: Sequence[Tensor | None]) -> Answers:
    """One number for every document, so that its rows need not leave the device."""
    own = [query for query in (queries[member] for member in documents.members) if query is not None]
    assert documents.counts is not None and len(own) == len(documents.members), "a document has rows and a query"
    return Answers(documents.ask, documents.members, max_sims(own, documents.rows, documents.counts))


def _columns(options: Options, width: int) -> list[int] | None:
    """Which of so many numbers per row are wanted; None means all."""
    if options.returned_token_ids is None:
        return None
    if beyond := [column for column in options.returned_token_ids if not 0 <= column < width]:
        raise BadRequest(
            f"returned_token_ids asks for columns {beyond[:5]}, the model gives {width} (0 to {width - 1})",
            param="returned_token_ids",
        )
    return list(options.returned_token_ids)
