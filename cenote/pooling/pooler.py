"""From token states to answers: method, head, activation, whatever mix of tasks a batch holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import BadRequest
from cenote.kernels.max_sim import max_sim_pairs
from cenote.packed_batch import PackedBatch
from cenote.pooling.activations import CLASSIFICATION_ACTIVATIONS, normalize
from cenote.pooling.heads import Heads
from cenote.pooling.methods import POOLING_METHODS
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.sparse import dense_to_pairs, token_weights_to_pairs
from cenote.protocol.params import PoolingOptions, Task


class PoolingSpec(NamedTuple):
    """What one sequence of a batch is for."""

    task: Task
    options: PoolingOptions
    is_max_sim: bool = False  # with a query that the sequence brings along: the answer is one number


@dataclass(frozen=True, slots=True)
class PooledGroup:
    """The answers to the sequences that asked the same: one row each, or `counts` rows each."""

    spec: PoolingSpec
    seq_indices: list[int]
    rows: Tensor
    row_counts: list[int] | None = None


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
        specs: Sequence[Sequence[PoolingSpec]],
        query_embeddings: Sequence[Tensor | None] = (),
    ) -> list[PooledGroup]:
        """The answers to all that is asked of every sequence of a batch, those that ask the same together.

        `queries` are the rows that sequences are compared with, where they are.
        """
        groups: dict[PoolingSpec, list[int]] = {}
        first = 0
        for several, neighbours in groupby(specs):  # mostly the very same object, which is quick to compare
            members = list(range(first, first + len(list(neighbours))))
            for ask in several:
                groups.setdefault(ask, []).extend(members)
            first += len(members)
        pooled: Tensor | None = None  # shared by all groups that want one vector per sequence
        weighed: dict[tuple[int, ...], Tensor] = {}  # over the vocabulary, by the sequences they are of
        answers = []
        for ask, members in groups.items():
            task, options, compared = ask
            if task == "sparse_embed" or (task == "embed" and self.heads.splade is not None):
                rows, counts = self._pool_sparse(hidden, batch, task, members, weighed)
                answers.append(PooledGroup(ask, members, rows, counts))
            elif task in ("embed", "classify"):
                if pooled is None:
                    pooled = self._pool(hidden, batch)
                states = pooled if len(members) == batch.num_seqs else pooled[members]
                answers.append(PooledGroup(ask, members, self._apply_head(states, task, options)))
            else:
                rows_of_tokens = self._pool_tokens(hidden, batch, ask, members)
                answers.append(_max_sim_scores(rows_of_tokens, query_embeddings) if compared else rows_of_tokens)
        return answers

    def _pool(self, hidden: Tensor, batch: PackedBatch) -> Tensor:
        if (classifier := self.heads.classifier) is not None and classifier.dense_first:
            hidden = classifier.first_layers(hidden.to(self.dtype))
        parts = [POOLING_METHODS[name](hidden, batch).to(self.dtype) for name in self.plan.seq_pooling_types.value]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def _pool_sparse(
        self,
        hidden: Tensor,
        batch: PackedBatch,
        task: Task,
        seq_indices: list[int],
        splade_cache: dict[tuple[int, ...], Tensor],
    ) -> tuple[Tensor, list[int] | None]:
        """Weights over the vocabulary: all of them as one vector, or those above zero as pairs of id and weight."""
        if self.heads.splade is None:
            assert self.heads.classifier is not None, "a weight for every token comes from the classifier"
            weights = self._compute_logits(hidden.to(self.dtype), "token_classify", PoolingOptions())[:, 0]
            return token_weights_to_pairs(weights, batch, seq_indices, self.plan.excluded_token_ids)
        if (vectors := splade_cache.get(tuple(seq_indices))) is None:
            vectors = splade_cache[tuple(seq_indices)] = self.heads.splade(hidden, batch, seq_indices)
        return (vectors, None) if task == "embed" else dense_to_pairs(vectors)

    def _pool_tokens(
        self, hidden: Tensor, batch: PackedBatch, spec: PoolingSpec, seq_indices: list[int]
    ) -> PooledGroup:
        task, options = spec.task, spec.options
        starts = batch.cu_seqlens_cpu
        pieces = [(starts[member], starts[member + 1]) for member in seq_indices]
        counts = [end - start for start, end in pieces]
        kept = self._make_row_mask(batch, task, options)
        if len(seq_indices) < batch.num_seqs:
            hidden = torch.cat([hidden[start:end] for start, end in pieces])
            kept = None if kept is None else torch.cat([kept[start:end] for start, end in pieces])
        if kept is not None:
            hidden = hidden[kept]
            counts = [int(part.sum()) for part in torch.split(kept, counts)]
        rows = self._apply_head(hidden.to(self.dtype), task, options)
        return PooledGroup(spec, seq_indices, rows[:, 0] if task in self.plan.scalar_tasks else rows, counts)

    def _make_row_mask(self, batch: PackedBatch, task: Task, options: PoolingOptions) -> Tensor | None:
        """[tokens], which of them the answer has a row for; None means all."""
        kept = batch.row_mask
        if options.step_tag_id is not None:
            tagged = batch.token_ids == options.step_tag_id
            kept = tagged if kept is None else kept & tagged
        first, last = self.plan.edge_token_ids.get(task, (None, None))
        for border, at in ((first, batch.cu_seqlens[:-1]), (last, batch.cu_seqlens[1:] - 1)):
            if border is not None:
                kept = torch.ones_like(batch.token_ids, dtype=torch.bool) if kept is None else kept.clone()
                kept[at] &= batch.token_ids[at] != border
        return kept

    def _apply_head(self, states: Tensor, task: Task, options: PoolingOptions) -> Tensor:
        if task in ("embed", "token_embed"):
            return self._project_embeddings(states, task, options)
        return self._compute_logits(states, task, options)

    def _project_embeddings(self, x: Tensor, task: Task, options: PoolingOptions) -> Tensor:
        projector = self.heads.projector if task == "embed" else self.heads.token_projector
        if projector is not None:
            x = projector(x)
        if (columns := _select_columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        if options.dimensions is not None:
            x = x[..., : options.dimensions]
        return normalize(x) if options.use_activation else x

    def _compute_logits(self, x: Tensor, task: Task, options: PoolingOptions) -> Tensor:
        if (classifier := self.heads.classifier) is not None:
            # a sequence classifier's dense layer was trained on pooled states: a single token skips it in most families
            whole = not classifier.dense_first if task == "classify" else classifier.whole_per_token
            x = x.to(classifier.classifier.weight.dtype)
            columns = _select_columns(options, classifier.classifier.out_features)
            x = (classifier(x, columns) if whole else classifier.last_layer(x, columns)).to(self.dtype)
        elif (columns := _select_columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        if self.plan.logit_mean is not None:
            x = x - self.plan.logit_mean
        if self.plan.logit_sigma is not None:
            x = x / self.plan.logit_sigma
        return CLASSIFICATION_ACTIVATIONS[self.plan.activation.value](x) if options.use_activation else x


def _max_sim_scores(documents: PooledGroup, query_embeddings: Sequence[Tensor | None]) -> PooledGroup:
    """One number for every document, so that its rows need not leave the device."""
    own = [query for query in (query_embeddings[member] for member in documents.seq_indices) if query is not None]
    assert documents.row_counts is not None and len(own) == len(documents.seq_indices), (
        "a document has rows and a query"
    )
    return PooledGroup(documents.spec, documents.seq_indices, max_sim_pairs(own, documents.rows, documents.row_counts))


def _select_columns(options: PoolingOptions, width: int) -> list[int] | None:
    """Which of so many numbers per row are wanted; None means all."""
    if options.returned_token_ids is None:
        return None
    if beyond := [column for column in options.returned_token_ids if not 0 <= column < width]:
        raise BadRequest(
            f"returned_token_ids asks for columns {beyond[:5]}, the model gives {width} (0 to {width - 1})",
            param="returned_token_ids",
        )
    return list(options.returned_token_ids)
