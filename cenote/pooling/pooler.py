"""Pooler: turn token states into results by pooling method, head and activation, for any mix of tasks in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, Protocol

from cenote.errors import BadRequest
from cenote.pooling.activations import activate_logits
from cenote.pooling.heads import Heads
from cenote.pooling.late_chunking import split_chunks
from cenote.pooling.max_sim import max_sim_pairs
from cenote.pooling.methods import POOLING_METHODS, mean_without
from cenote.pooling.ops import ArrayOps, Batch, Rows
from cenote.pooling.plan import PoolingPlan
from cenote.pooling.sparse import dense_to_pairs, token_weights_to_pairs
from cenote.protocol.params import PoolingOptions, Task
from cenote.protocol.requests import Operand
from cenote.utils.dtypes import Dtype


class PoolingSpec(NamedTuple):
    """A task and its options for one sequence of a batch."""

    task: Task
    options: PoolingOptions
    is_max_sim: bool = False  # return the MaxSim score with the rows of the sequence's query instead of its rows
    finds_spans: bool = False  # return spans of words that may be entities instead of the rows

    def with_operand(self) -> PoolingSpec:
        """Return the spec of sequences with an operand, which decides with the task what is computed from it."""
        return self._replace(is_max_sim=True) if self.task == "token_embed" else self._replace(finds_spans=True)


class PooledGroup(NamedTuple):
    """The results of the sequences with the same spec: one row each, or `row_counts` rows each."""

    spec: PoolingSpec
    seq_indices: list[int]
    rows: Rows
    row_counts: list[int] | None = None


class SpanFinder(Protocol):
    """Finds entities in the states of a sequence."""

    def find_span_rows(self, states: Rows, operand: Operand) -> Rows:
        """Return a row (first, last, label, score) for each span that may be an entity."""
        ...


class Pooler:
    """Computes the results of token states, in the library of `ops`."""

    def __init__(
        self, plan: PoolingPlan, heads: Heads, ops: ArrayOps, dtype: Dtype, span_head: SpanFinder | None = None
    ) -> None:
        self.plan = plan
        self.heads = heads
        self.ops = ops
        self.dtype = dtype  # of the heads: float32 by default
        self.span_head = span_head  # of a model that finds entities of the labels in a request

    def get_supported_tasks(self) -> set[str]:
        return set(self.plan.supported_tasks)

    def __call__(
        self,
        hidden: Rows,
        batch: Batch,
        specs: Sequence[Sequence[PoolingSpec]],
        operands: Sequence[Operand | None] | None = None,
    ) -> list[PooledGroup]:
        """Pool a batch and return the results grouped by spec.

        `operands`: one per sequence, for specs with `is_max_sim` or `finds_spans`.
        """
        groups: dict[PoolingSpec, list[int]] = {}
        first = 0
        for seq_specs, run in groupby(specs):  # mostly the same object, which is quick to compare
            indices = list(range(first, first + len(list(run))))
            for spec in seq_specs:
                groups.setdefault(spec, []).extend(indices)
            first += len(indices)
        pooled: Rows = None  # shared by all groups with one vector per sequence
        splade_cache: dict[tuple[int, ...], Rows] = {}  # dense SPLADE vectors by the indices of their sequences
        results = []
        for spec, indices in groups.items():
            task, options = spec.task, spec.options
            if options.late_chunking:
                results.append(self._pool_chunks(hidden, batch, spec, indices))
            elif task == "sparse_embed" or (task == "embed" and self.heads.splade is not None):
                rows, counts = self._pool_sparse(hidden, batch, task, indices, splade_cache)
                results.append(PooledGroup(spec, indices, rows, counts))
            elif task in ("embed", "classify"):
                if pooled is None:
                    pooled = self._pool(hidden, batch)
                states = pooled if len(indices) == batch.num_seqs else pooled[indices]
                results.append(PooledGroup(spec, indices, self._apply_head(states, task, options)))
            else:
                group = self._pool_tokens(hidden, batch, spec, indices)
                if spec.is_max_sim or spec.finds_spans:
                    group = self._apply_operands(group, operands or ())
                results.append(group)
        return results

    def _pool(self, hidden: Rows, batch: Batch) -> Rows:
        if (classifier := self.heads.classifier) is not None and classifier.pool_after_dense:
            hidden = classifier.first_layers(self._to_dtype(hidden))
        methods = self.plan.seq_pooling_types.value
        if self.plan.unpooled_token_ids and methods == ("MEAN",):
            return self._to_dtype(mean_without(self.ops, hidden, batch, self.plan.unpooled_token_ids))
        if self.plan.pools_table and batch.num_unpooled is None and methods == ("MEAN",):
            return self._to_dtype(self.ops.mean_of_table_rows(hidden, batch))
        vectors = [self._to_dtype(POOLING_METHODS[name](self.ops, hidden, batch)) for name in methods]
        return vectors[0] if len(vectors) == 1 else self.ops.concat(vectors, axis=-1)

    def _to_dtype(self, x: Rows) -> Rows:
        return self.ops.to_dtype(x, self.dtype)

    def _pool_chunks(self, hidden: Rows, batch: Batch, spec: PoolingSpec, seq_indices: list[int]) -> PooledGroup:
        """Pool every chunk of the sequences as a sequence of its own.

        `embed` pools a chunk as it pools a text; `token_embed` returns the mean of all tokens in the place of tokens.
        """
        states, chunks, counts = split_chunks(self.ops, hidden, batch, seq_indices, spec.options.chunk_size)
        if spec.task == "token_embed":
            pooled = self._to_dtype(POOLING_METHODS["MEAN"](self.ops, states, chunks))
        else:
            pooled = self._pool(states, chunks)
        rows = self._apply_head(pooled, spec.task, spec.options)
        return PooledGroup(spec, seq_indices, rows, counts)

    def _pool_sparse(
        self,
        hidden: Rows,
        batch: Batch,
        task: Task,
        seq_indices: list[int],
        splade_cache: dict[tuple[int, ...], Rows],
    ) -> tuple[Rows, list[int] | None]:
        """Return weights over the vocabulary: as dense vectors for `embed`, else as (id, weight) rows above zero."""
        if self.heads.splade is None:
            assert self.heads.classifier is not None, "token weights are computed by the classifier"
            weights = self._apply_head(self._to_dtype(hidden), "token_classify", PoolingOptions())[:, 0]
            return token_weights_to_pairs(self.ops, weights, batch, seq_indices, self.plan.excluded_token_ids)
        if (vectors := splade_cache.get(tuple(seq_indices))) is None:
            vectors = splade_cache[tuple(seq_indices)] = self.heads.splade(hidden, batch, seq_indices)
        return (vectors, None) if task == "embed" else dense_to_pairs(self.ops, vectors)

    def _pool_tokens(self, hidden: Rows, batch: Batch, spec: PoolingSpec, seq_indices: list[int]) -> PooledGroup:
        task, options = spec.task, spec.options
        starts = batch.cu_seqlens_cpu
        spans = [(starts[index], starts[index + 1]) for index in seq_indices]
        counts = [end - start for start, end in spans]
        mask = self._make_row_mask(batch, task, options)
        if len(seq_indices) < batch.num_seqs:
            hidden = self.ops.concat([hidden[start:end] for start, end in spans])
            mask = None if mask is None else self.ops.concat([mask[start:end] for start, end in spans])
        if mask is not None:
            hidden = hidden[mask]
            counts = [int(seq_mask.sum()) for seq_mask in self.ops.split(mask, counts)]
        rows = self._apply_head(self._to_dtype(hidden), task, options)
        return PooledGroup(spec, seq_indices, rows[:, 0] if task in self.plan.scalar_tasks else rows, counts)

    def _apply_operands(self, group: PooledGroup, operands: Sequence[Operand | None]) -> PooledGroup:
        """Reduce the rows of each sequence on the device: to its MaxSim score, or to spans that may be entities."""
        # an operand that several sequences share is one object
        own = [operand for index in group.seq_indices if (operand := operands[index]) is not None]
        assert group.row_counts is not None, "tasks of tokens return several rows per sequence"
        if group.spec.is_max_sim:
            return group._replace(rows=max_sim_pairs(self.ops, own, group.rows, group.row_counts), row_counts=None)
        assert self.span_head is not None, "only its models send such operands"
        states = self.ops.split(group.rows, group.row_counts)
        spans = list(map(self.span_head.find_span_rows, states, own))
        return group._replace(rows=self.ops.concat(spans), row_counts=list(map(len, spans)))

    def _make_row_mask(self, batch: Batch, task: Task, options: PoolingOptions) -> Rows | None:
        """Return a mask of the tokens that have a row in the result, [tokens]; None means all."""
        mask = batch.row_mask
        if options.step_tag_id is not None:
            is_step = batch.token_ids == options.step_tag_id
            mask = is_step if mask is None else mask & is_step
        first, last = self.plan.edge_token_ids.get(task, (None, None))
        for token_id, positions in ((first, batch.cu_seqlens[:-1]), (last, batch.cu_seqlens[1:] - 1)):
            if token_id is not None:
                mask = batch.token_ids >= 0 if mask is None else self.ops.copy(mask)
                mask[positions] &= batch.token_ids[positions] != token_id
        return mask

    def pool_raw(self, hidden: Rows, batch: Batch, spec: PoolingSpec) -> Rows:
        """Return one row per sequence as it leaves the head: `finish` applies what differs between requests."""
        return self._apply_raw_head(self._pool(hidden, batch), spec.task, spec.options)

    def finish(self, raw: Rows, task: Task, options: PoolingOptions) -> Rows:
        """Return the results of rows of `pool_raw`: embeddings cut and normalized, logits activated."""
        if task in ("embed", "token_embed"):
            return self._finish_embeddings(raw, task, options)
        return self._finish_logits(raw, options)

    def _apply_head(self, states: Rows, task: Task, options: PoolingOptions) -> Rows:
        return self.finish(self._apply_raw_head(states, task, options), task, options)

    def _apply_raw_head(self, states: Rows, task: Task, options: PoolingOptions) -> Rows:
        if task in ("embed", "token_embed"):
            projector = self.heads.projector if task == "embed" else self.heads.token_projector
            return states if projector is None else projector(states)
        return self._compute_raw_logits(states, task, options)

    def _finish_embeddings(self, x: Rows, task: Task, options: PoolingOptions) -> Rows:
        if (columns := _select_columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        sizes = self.plan.matryoshka
        if options.dimensions is not None:
            if task == "embed" and sizes.is_layer_normed(options.dimensions):
                x = self.ops.layer_norm(x)
            x = x[..., : options.dimensions]
        x = self.ops.normalize(x) if options.use_activation else x
        # as in Sentence Transformers, the default cut comes after the normalization
        is_cut = task == "embed" and options.dimensions is None and sizes.default_size is not None
        return x[..., : sizes.default_size] if is_cut else x

    def _compute_raw_logits(self, x: Rows, task: Task, options: PoolingOptions) -> Rows:
        """Return the logits of the requested columns; others, perhaps of a whole vocabulary, are not computed."""
        if (classifier := self.heads.classifier) is not None:
            # a sequence classifier's dense layer was trained on pooled states: in most families tokens skip it
            full_head = not classifier.pool_after_dense if task == "classify" else classifier.full_head_per_token
            x = self.ops.to_dtype(x, classifier.classifier.dtype)
            columns = _select_columns(options, classifier.classifier.out_features)
            x = self._to_dtype(classifier(x, columns) if full_head else classifier.last_layer(x, columns))
        elif (columns := _select_columns(options, x.shape[-1])) is not None:
            x = x[..., columns]
        return x

    def _finish_logits(self, x: Rows, options: PoolingOptions) -> Rows:
        if self.plan.logit_mean is not None:
            x = x - self.plan.logit_mean
        if self.plan.logit_sigma is not None:
            x = x / self.plan.logit_sigma
        return activate_logits(self.ops, x, self.plan.activation.value) if options.use_activation else x


def _select_columns(options: PoolingOptions, width: int) -> list[int] | None:
    """Return the requested columns of rows of this width; None means all."""
    if options.returned_token_ids is None:
        return None
    if invalid := [column for column in options.returned_token_ids if not 0 <= column < width]:
        raise BadRequest(
            f"returned_token_ids {invalid[:5]} out of range; the model has {width} columns (0 to {width - 1})",
            param="returned_token_ids",
        )
    return list(options.returned_token_ids)
