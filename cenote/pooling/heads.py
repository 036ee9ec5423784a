"""Heads on top of the backbone: embedding projections, classifiers, SPLADE."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec
from cenote.packed_batch import PackedBatch
from cenote.pooling.sparse import reduce_by_sequence


class Classifier(nn.Module):
    """Optional dense layer, activation and norm, then a linear layer that computes logits."""

    def __init__(self, spec: HeadSpec, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.full_head_per_token = spec.full_head_per_token
        self.pool_after_dense = spec.pool_after_dense
        self.softcap = spec.softcap
        size = spec.dense_size or hidden_size
        self.dense = (
            Linear(hidden_size, size, bias=spec.dense_bias, activation=spec.dense_activation)
            if spec.has_dense
            else None
        )
        self.norm = nn.LayerNorm(size, eps=spec.norm_eps, bias=spec.norm_bias) if spec.has_norm else None
        self.classifier = Linear(size, num_labels, bias=bool(spec.bias))

    def forward(self, x: Tensor, columns: list[int] | None = None) -> Tensor:
        return self.last_layer(self.first_layers(x), columns)

    def first_layers(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.dense(x)
        return x if self.norm is None else self.norm(x)

    def last_layer(self, x: Tensor, columns: list[int] | None = None) -> Tensor:
        """Return the logits, of the given columns only if set: two of a whole vocabulary need two rows of weights."""
        layer = self.classifier
        if columns is not None:
            bias = None if layer.bias is None else layer.bias[columns].float()
            return self._cap(F.linear(x.float(), layer.weight[columns].float(), bias))
        return self._cap(layer(x))

    def _cap(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else (logits / self.softcap).tanh() * self.softcap


class GatedRewards(Classifier):
    """ArmoRM: rewards of several objectives from the last state, weighted by a softmax over the state of the prompt."""

    def __init__(self, spec: HeadSpec, hidden_size: int) -> None:
        assert spec.gating is not None, "the head has a gating network"
        gating = spec.gating
        super().__init__(spec, hidden_size, gating.num_objectives)
        self.temperature = gating.temperature
        self.transform = nn.Parameter(torch.empty(gating.num_objectives, gating.num_objectives), requires_grad=False)
        sizes = [hidden_size, *[gating.hidden_size] * gating.num_layers]
        self.gate = nn.ModuleList(
            [Linear(size, gating.hidden_size, bias=True, activation="relu") for size in sizes[:-1]]
            + [Linear(sizes[-1], gating.num_objectives, bias=True)]
        )
        self.gate_scale = nn.Parameter(torch.empty(1), requires_grad=False)

    def forward(self, x: Tensor, columns: list[int] | None = None) -> Tensor:
        """Return one score; the two halves of `x` are the last state and that of the prompt."""
        last, gate_state = x.chunk(2, dim=-1)
        for layer in self.gate:
            gate_state = layer(gate_state)
        weights = (gate_state / self.temperature).softmax(dim=-1) * self.gate_scale
        scores = (weights * (self.last_layer(last) @ self.transform)).sum(dim=-1, keepdim=True)
        return scores if columns is None else scores[..., columns]


class ModuleClassifier(Classifier):
    """A chain of layers on pooled states whose last one computes the logits."""

    def __init__(self, layers: list[nn.Module]) -> None:
        *first, last = layers
        inner = last.layer if isinstance(last, ResidualLayer) else last
        assert isinstance(inner, Linear), "the last layer is a Dense module"
        with torch.device("meta"):
            super().__init__(HeadSpec(bias=False), inner.in_features, inner.out_features)
        self.first = nn.Sequential(*first)
        self.last = last
        self.classifier = inner

    def first_layers(self, x: Tensor) -> Tensor:
        states: Tensor = self.first(x)
        return states

    def last_layer(self, x: Tensor, columns: list[int] | None = None) -> Tensor:
        logits: Tensor = self.last(x)
        return logits if columns is None else logits[..., columns]


class ResidualLayer(nn.Module):
    """Add the input to a layer's output, projected by a matrix if their sizes differ."""

    def __init__(self, layer: nn.Module, matrix: Tensor | None) -> None:
        super().__init__()
        self.layer = layer
        self.matrix = None if matrix is None else nn.Parameter(matrix, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x if self.matrix is None else F.linear(x, self.matrix))  # type: ignore[no-any-return]


class TanhInt8(nn.Module):
    """Quantize embeddings to whole numbers from -127 to 127, by tanh; they stay floating point."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.tanh() * 127).round()


class SpladeHead(nn.Module):
    """SPLADE: log(1 + relu(logit)) for each vocabulary entry, max- or sum-pooled over the tokens of a sequence."""

    def __init__(self, head: Classifier, *, strategy: str = "max", num_logs: int = 1) -> None:
        super().__init__()
        self.head = head
        self.strategy = strategy  # "max" or "sum"
        self.num_logs = num_logs
        self.packed_vocabulary: nn.Module | None = None  # the product with the vocabulary, without bias

    def forward(self, hidden: Tensor, batch: PackedBatch, seq_indices: list[int]) -> Tensor:
        """Return sparse vectors in dense form, [seq_indices, vocabulary]."""
        last = self.head.classifier
        pool = torch.amax if self.strategy == "max" else torch.sum

        def compute_logits(states: Tensor) -> Tensor:
            states = self.head.first_layers(states)
            return F.linear(states, last.weight) if self.packed_vocabulary is None else self.packed_vocabulary(states)

        def compute_weights(states: Tensor) -> Tensor:
            return self._compute_weights(compute_logits(states))

        # the weight is monotonic in the logit, so max pooling commutes with it and bias and log run on pooled logits
        pools_logits = self.strategy == "max"
        compute = compute_logits if pools_logits else compute_weights
        pooled = reduce_by_sequence(compute, pool, last.out_features, hidden, batch, seq_indices)
        return self._compute_weights(pooled) if pools_logits else pooled

    def _compute_weights(self, logits: Tensor) -> Tensor:
        weights = logits.float()
        if self.head.classifier.bias is not None:
            weights = weights.add_(self.head.classifier.bias)
        weights = weights.relu_()
        for _ in range(self.num_logs):
            weights = weights.log1p_()
        return weights


class TokenWeights(nn.Module):
    """Sparse vectors of static weights: each distinct token of a sequence has the weight of its vocabulary entry.

    Token ids from `vocab_size` on have no entry. `sums`: a token that occurs twice has twice the weight.
    """

    def __init__(self, vocab_size: int, *, table_size: int | None = None, sums: bool = False) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.table_size = table_size or vocab_size
        self.sums = sums

    def forward(self, weights: Tensor, batch: PackedBatch, seq_indices: list[int]) -> Tensor:
        """Return the vectors in dense form, [seq_indices, vocabulary]; `weights` [tokens, 1] are those of the table."""
        vectors = weights.new_zeros(batch.num_seqs, self.table_size, dtype=torch.float32)
        vectors.index_put_((batch.segment_ids, batch.token_ids), weights[:, 0].float(), accumulate=self.sums)
        vectors = vectors[:, : self.vocab_size]
        return vectors if len(seq_indices) == batch.num_seqs else vectors[seq_indices]


class Heads(nn.Module):
    """The heads of a model; those it does not have are None."""

    def __init__(
        self,
        projector: nn.Module | None = None,
        token_projector: nn.Module | None = None,
        classifier: Classifier | None = None,
        splade: SpladeHead | TokenWeights | None = None,
    ) -> None:
        super().__init__()
        self.projector = projector  # for sequence embeddings
        self.token_projector = token_projector  # for token embeddings
        self.classifier = classifier
        self.splade = splade
