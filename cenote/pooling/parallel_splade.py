"""SPLADE head whose vocabulary is split over the ranks of a tensor-parallel model."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from cenote.layers.linear import Linear
from cenote.layers.parallel_group import ParallelGroup
from cenote.packed_batch import PackedBatch
from cenote.pooling.heads import Classifier, SpladeHead


class ParallelSpladeHead(SpladeHead):
    """Computes the weights of one part of the vocabulary on every rank and returns all of them."""

    def __init__(self, whole: SpladeHead, group: ParallelGroup) -> None:
        super().__init__(whole.head, strategy=whole.strategy, num_logs=whole.num_logs)
        self.group = group
        # called before the first rank computes: the others must compute the same sequences
        self.before_forward: Callable[[list[int]], None] = lambda seq_indices: None
        self.vocab_size = whole.head.classifier.weight.shape[0]
        _keep_rows(whole.head, *self._range(group.rank))

    def forward(self, hidden: Tensor, batch: PackedBatch, seq_indices: list[int]) -> Tensor:
        self.before_forward(seq_indices)
        part = super().forward(hidden, batch, seq_indices)
        ranges = [self._range(rank) for rank in range(self.group.num_ranks)]
        return self.group.gather_columns(part, [end - start for start, end in ranges])

    def _range(self, rank: int) -> tuple[int, int]:
        """Return the rows of a rank; they need not be equally many."""
        size, num_ranks = self.vocab_size, self.group.num_ranks
        return rank * size // num_ranks, (rank + 1) * size // num_ranks


def _keep_rows(head: Classifier, start: int, end: int) -> None:
    """Keep some rows of the last layer: a view, since the matrix is mostly that of the embeddings."""
    layer: Linear = head.classifier
    layer.weight = nn.Parameter(layer.weight[start:end], requires_grad=False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(layer.bias[start:end], requires_grad=False)
    layer.out_features = end - start
