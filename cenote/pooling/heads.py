"""Heads on top of the backbone: embedding projections, classifiers, SPLADE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cenote.layers.spec import HeadSpec
from cenote.pooling.layers import Layer, LinearLayer, ResidualLayer, Sequential
from cenote.pooling.ops import ArrayOps, Batch, Rows
from cenote.pooling.sparse import reduce_by_sequence


class Classifier:
    """Optional dense layer, activation and norm, then a linear layer that computes logits."""

    def __init__(
        self,
        ops: ArrayOps,
        spec: HeadSpec,
        classifier: LinearLayer,
        *,
        dense: LinearLayer | None = None,
        norm: Layer | None = None,
    ) -> None:
        self.ops = ops
        self.full_head_per_token = spec.full_head_per_token
        self.pool_after_dense = spec.pool_after_dense
        self.softcap = spec.softcap
        self.dense = dense
        self.norm = norm
        self.classifier = classifier

    def __call__(self, x: Rows, columns: Sequence[int] | None = None) -> Rows:
        return self.last_layer(self.first_layers(x), columns)

    def first_layers(self, x: Rows) -> Rows:
        if self.dense is not None:
            x = self.dense(x)
        return x if self.norm is None else self.norm(x)

    def last_layer(self, x: Rows, columns: Sequence[int] | None = None) -> Rows:
        """Return the logits, of the given columns only if set: two of a whole vocabulary need two rows of weights."""
        if columns is not None:
            return self._cap(self.classifier.select(columns)(self.ops.to_dtype(x, "float32")))
        return self._cap(self.classifier(x))

    def _cap(self, logits: Rows) -> Rows:
        return logits if self.softcap is None else self.ops.activate(logits / self.softcap, "tanh") * self.softcap

    def linears(self) -> Sequence[LinearLayer]:
        return [*([] if self.dense is None else [self.dense]), self.classifier]


class GatedRewards(Classifier):
    """ArmoRM: rewards of several objectives from the last state, weighted by a softmax over the state of the prompt."""

    def __init__(
        self,
        ops: ArrayOps,
        spec: HeadSpec,
        classifier: LinearLayer,
        *,
        transform: Rows,
        gate: Sequence[LinearLayer],
        gate_scale: Rows,
    ) -> None:
        """`transform`: [objectives, objectives]; `gate`: layers that compute the weights of the objectives."""
        assert spec.gating is not None, "the head has a gating network"
        super().__init__(ops, spec, classifier)
        self.temperature = spec.gating.temperature
        self.transform = transform
        self.gate = Sequential(gate)
        self.gate_scale = gate_scale

    def __call__(self, x: Rows, columns: Sequence[int] | None = None) -> Rows:
        """Return one score; the two halves of `x` are the last state and that of the prompt."""
        size = x.shape[-1] // 2
        last, prompt_end = x[..., :size], x[..., size:]
        weights = self.ops.softmax(self.gate(prompt_end) / self.temperature) * self.gate_scale
        scores = (weights * (self.last_layer(last) @ self.transform)).sum(axis=-1, keepdims=True)
        return scores if columns is None else scores[..., list(columns)]

    def linears(self) -> Sequence[LinearLayer]:
        return [*super().linears(), *self.gate.linears()]


class ModuleClassifier(Classifier):
    """A chain of layers on pooled states whose last one computes the logits."""

    def __init__(self, ops: ArrayOps, layers: Sequence[Layer]) -> None:
        *first, last = layers
        inner = last.layer if isinstance(last, ResidualLayer) else last
        (linear,) = inner.linears()  # the last layer is a Dense module
        super().__init__(ops, HeadSpec(bias=False), linear)
        self.first = Sequential(first)
        self.last = last

    def first_layers(self, x: Rows) -> Rows:
        return self.first(x)

    def last_layer(self, x: Rows, columns: Sequence[int] | None = None) -> Rows:
        logits = self.last(x)
        return logits if columns is None else logits[..., list(columns)]

    def linears(self) -> Sequence[LinearLayer]:
        return [*self.first.linears(), *self.last.linears()]


class SpladeHead:
    """SPLADE: log(1 + relu(logit)) for each vocabulary entry, max- or sum-pooled over the tokens of a sequence."""

    def __init__(self, ops: ArrayOps, head: Classifier, *, strategy: str = "max", num_logs: int = 1) -> None:
        self.ops = ops
        self.head = head
        self.vocabulary, self.bias = head.classifier.without_bias(), head.classifier.bias
        self.strategy = strategy  # "max" or "sum"
        self.num_logs = num_logs

    def __call__(self, hidden: Rows, batch: Batch, seq_indices: Sequence[int]) -> Rows:
        """Return sparse vectors in dense form, [seq_indices, vocabulary]."""

        def compute_logits(states: Rows) -> Rows:
            return self.vocabulary(self.head.first_layers(states))

        def compute_weights(states: Rows) -> Rows:
            return self._compute_weights(compute_logits(states))

        def compute_maxima(rows: Rows) -> Rows:
            return self.ops.amax(rows, 0)

        def compute_sums(rows: Rows) -> Rows:
            return rows.sum(axis=0)

        # the weight is monotonic in the logit, so max pooling commutes with it and bias and log run on pooled logits
        pools_logits = self.strategy == "max"
        compute = compute_logits if pools_logits else compute_weights
        reduce = compute_maxima if pools_logits else compute_sums
        size = self.vocabulary.out_features
        pooled = reduce_by_sequence(self.ops, compute, reduce, size, hidden, batch, seq_indices)
        return self._compute_weights(pooled) if pools_logits else pooled

    def _compute_weights(self, logits: Rows) -> Rows:
        """Return the weights of logits, which are overwritten."""
        weights = self.ops.to_dtype(logits, "float32")
        if self.bias is not None:
            weights += self.bias
        weights = self.ops.relu_(weights)
        for _ in range(self.num_logs):
            weights = self.ops.log1p_(weights)
        return weights

    def linears(self) -> Sequence[LinearLayer]:
        return [*([] if self.head.dense is None else [self.head.dense]), self.vocabulary]


class TokenWeights:
    """Sparse vectors of static weights: each distinct token of a sequence has the weight of its vocabulary entry.

    Token ids from `vocab_size` on have no entry. `sums`: a token that occurs twice has twice the weight.
    """

    def __init__(self, ops: ArrayOps, vocab_size: int, *, table_size: int | None = None, sums: bool = False) -> None:
        self.ops = ops
        self.vocab_size = vocab_size
        self.table_size = table_size or vocab_size
        self.sums = sums

    def __call__(self, weights: Rows, batch: Batch, seq_indices: Sequence[int]) -> Rows:
        """Return the vectors in dense form, [seq_indices, vocabulary]; `weights` [tokens, 1] are those of the table."""
        values = self.ops.to_dtype(weights[:, 0], "float32")
        shape = (batch.num_seqs, self.table_size)
        vectors = self.ops.scatter(shape, (batch.segment_ids, batch.token_ids), values, accumulate=self.sums)
        vectors = vectors[:, : self.vocab_size]
        return vectors if len(seq_indices) == batch.num_seqs else vectors[list(seq_indices)]

    def linears(self) -> Sequence[LinearLayer]:
        return []


@dataclass(slots=True)
class Heads:
    """The heads of a model; those it does not have are None."""

    projector: Layer | None = None  # for sequence embeddings
    token_projector: Layer | None = None  # for token embeddings
    classifier: Classifier | None = None
    splade: SpladeHead | TokenWeights | None = None

    def linears(self) -> Sequence[LinearLayer]:
        """Return the linear layers of all heads."""
        heads = (self.projector, self.token_projector, self.classifier, self.splade)
        return [linear for head in heads if head is not None for linear in head.linears()]
