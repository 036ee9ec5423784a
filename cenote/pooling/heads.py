"""What stands between pooled states and the answer: projections of embedders, classifiers."""

from __future__ import annotations

from torch import Tensor, nn

from cenote.batch import PackedBatch
from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec
from cenote.pooling.sparse import most_by_sequence


class Classifier(nn.Module):
    """dense -> activation -> norm, as far as the family has them, then one linear layer of logits."""

    def __init__(self, spec: HeadSpec, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.whole_per_token = spec.whole_per_token
        size = spec.dense_size or hidden_size
        self.dense = (
            Linear(hidden_size, size, bias=spec.dense_bias, activation=spec.dense_activation) if spec.dense else None
        )
        self.norm = nn.LayerNorm(size, eps=spec.norm_eps, bias=spec.norm_bias) if spec.norm else None
        self.classifier = Linear(size, num_labels, bias=bool(spec.bias))

    def forward(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.dense(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.last_layer(x)

    def last_layer(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x)
        return logits


class VocabularyWeights(nn.Module):
    """SPLADE: for every entry of the vocabulary the largest log(1 + logit) that any token of the sequence gives it."""

    def __init__(self, head: Classifier) -> None:
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor, batch: PackedBatch, members: list[int]) -> Tensor:
        """[members, vocabulary]"""

        def weigh(states: Tensor) -> Tensor:
            return self.head(states).float().relu().log1p()  # type: ignore[no-any-return]

        return most_by_sequence(weigh, self.head.classifier.out_features, hidden, batch, members)


class Heads(nn.Module):
    """All that a model has above its backbone."""

    def __init__(
        self,
        projector: nn.Module | None = None,
        token_projector: nn.Module | None = None,
        classifier: Classifier | None = None,
        vocabulary: VocabularyWeights | None = None,
    ) -> None:
        super().__init__()
        self.projector = projector  # of the vector of a sequence
        self.token_projector = token_projector  # of the vector of a token
        self.classifier = classifier
        self.vocabulary = vocabulary
