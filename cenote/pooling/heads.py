"""What stands between pooled states and the answer: projections of embedders, classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec
from cenote.packed_batch import PackedBatch
from cenote.pooling.sparse import reduce_by_sequence


class Classifier(nn.Module):
    """dense -> activation -> norm, as far as the family has them, then one linear layer of logits."""

    def __init__(self, spec: HeadSpec, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.whole_per_token = spec.full_head_per_token
        self.dense_first = spec.pool_after_dense
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
        """The logits, of some labels only where they are named: two words of a vocabulary need not all its rows."""
        layer = self.classifier
        if columns is not None:
            bias = None if layer.bias is None else layer.bias[columns].float()
            return F.linear(x.float(), layer.weight[columns].float(), bias)
        logits: Tensor = layer(x)
        return logits


class ResidualLayer(nn.Module):
    """A layer to whose output its input is added, through a matrix where their sizes differ."""

    def __init__(self, layer: nn.Module, matrix: Tensor | None) -> None:
        super().__init__()
        self.layer = layer
        self.matrix = None if matrix is None else nn.Parameter(matrix, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x if self.matrix is None else F.linear(x, self.matrix))  # type: ignore[no-any-return]


class SpladeHead(nn.Module):
    """SPLADE: for every entry of the vocabulary log(1 + logit) of the token that wants it most, or of all tokens."""

    def __init__(self, head: Classifier, *, strategy: str = "max", num_logs: int = 1) -> None:
        super().__init__()
        self.head = head
        self.strategy = strategy  # "max" or "sum"
        self.num_logs = num_logs

    def forward(self, hidden: Tensor, batch: PackedBatch, seq_indices: list[int]) -> Tensor:
        """[members, vocabulary]"""
        last = self.head.classifier
        pool = torch.amax if self.strategy == "max" else torch.sum

        def logits(states: Tensor) -> Tensor:
            return F.linear(self.head.first_layers(states), last.weight)

        def weigh(states: Tensor) -> Tensor:
            return self._compute_weights(logits(states))

        # the largest logit has the largest weight, so that the others need neither bias nor logarithm
        late = self.strategy == "max"
        pooled = reduce_by_sequence(logits if late else weigh, pool, last.out_features, hidden, batch, seq_indices)
        return self._compute_weights(pooled) if late else pooled

    def _compute_weights(self, logits: Tensor) -> Tensor:
        weights = logits.float()
        if self.head.classifier.bias is not None:
            weights = weights.add_(self.head.classifier.bias)
        weights = weights.relu_()
        for _ in range(self.num_logs):
            weights = weights.log1p_()
        return weights


class Heads(nn.Module):
    """All that a model has above its backbone."""

    def __init__(
        self,
        projector: nn.Module | None = None,
        token_projector: nn.Module | None = None,
        classifier: Classifier | None = None,
        splade: SpladeHead | None = None,
    ) -> None:
        super().__init__()
        self.projector = projector  # of the vector of a sequence
        self.token_projector = token_projector  # of the vector of a token
        self.classifier = classifier
        self.splade = splade
