"""Output activations: L2 normalization of embeddings, sigmoid, softmax and others for logits."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from cenote.kernels.native_pooling import normalize_rows

MIN_NORM = 1e-12  # as in Sentence Transformers


def normalize(x: Tensor) -> Tensor:
    normalized = normalize_rows(x, MIN_NORM)
    return F.normalize(x, p=2.0, dim=-1, eps=MIN_NORM) if normalized is None else normalized


def sigmoid_or_softmax(x: Tensor) -> Tensor:
    """Apply sigmoid to a single logit, softmax to several."""
    return x.sigmoid() if x.shape[-1] < 2 else x.softmax(dim=-1)


CLASSIFICATION_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "auto": sigmoid_or_softmax,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
}
