"""What stands between pooled states and the answer: projections of embedders, classifiers."""

from __future__ import annotations

from torch import Tensor, nn

from cenote.layers.linear import Linear
from cenote.layers.spec import HeadSpec


class Classifier(nn.Module):
    """dense -> activation -> norm, as far as the family has them, then one linear layer of logits."""

    def __init__(self, spec: HeadSpec, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.whole_per_token = spec.whole_per_token
        self.dense = (
            Linear(hidden_size, hidden_size, bias=spec.dense_bias, activation=spec.dense_activation)
            if spec.dense
            else None
        )
        self.norm = nn.LayerNorm(hidden_size, eps=spec.norm_eps, bias=spec.norm_bias) if spec.norm else None
        self.classifier = Linear(hidden_size, num_labels, bias=bool(spec.bias))

    def forward(self, x: Tensor) -> Tensor:
        if self.dense is not None:
            x = self.dense(x)
        if self.norm is not None:
            x = self.norm(x)
        return self.last_layer(x)

    def last_layer(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(x)
        return logits
