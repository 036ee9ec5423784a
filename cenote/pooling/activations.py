"""Output activations of logits: sigmoid, softmax and others."""

from __future__ import annotations

from cenote.pooling.ops import ArrayOps, Rows


def activate_logits(ops: ArrayOps, logits: Rows, name: str) -> Rows:
    """Apply an activation by its name in `pooling.activation_names`."""
    if name != "auto":
        return ops.activate(logits, name)
    return ops.activate(logits, "sigmoid") if logits.shape[-1] < 2 else ops.softmax(logits)
