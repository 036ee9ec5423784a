"""SPLADE head whose vocabulary is split over the ranks of a tensor-parallel model; in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from torch import Tensor

from cenote.layers.parallel_group import ParallelGroup
from cenote.packed_batch import PackedBatch
from cenote.pooling.heads import SpladeHead
from cenote.pooling.torch_layers import HeadLinear


class ParallelSpladeHead(SpladeHead):
    """Computes the weights of one part of the vocabulary on every rank and returns all of them."""

    def __init__(self, whole: SpladeHead, group: ParallelGroup) -> None:
        self.group = group
        # called before the first rank computes: the others must compute the same sequences
        self.before_forward: Callable[[Sequence[int]], None] = lambda seq_indices: None
        layer = whole.head.classifier
        assert isinstance(layer, HeadLinear), "the layers of split models are torch's"
        self.vocab_size: int = layer.out_features
        head = copy(whole.head)
        head.classifier = layer.keep_rows(*self._range(group.rank))
        super().__init__(whole.ops, head, strategy=whole.strategy, num_logs=whole.num_logs)

    def __call__(self, hidden: Tensor, batch: PackedBatch, seq_indices: Sequence[int]) -> Tensor:
        self.before_forward(seq_indices)
        part: Tensor = super().__call__(hidden, batch, seq_indices)
        ranges = [self._range(rank) for rank in range(self.group.num_ranks)]
        return self.group.gather_columns(part, [end - start for start, end in ranges])

    def _range(self, rank: int) -> tuple[int, int]:
        """Return the rows of a rank; they need not be equally many."""
        size, num_ranks = self.vocab_size, self.group.num_ranks
        return rank * size // num_ranks, (rank + 1) * size // num_ranks
