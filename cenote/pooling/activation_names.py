"""Choose the activation of a classifier by name, from its config.json."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from cenote.config.options import Sourced
from cenote.errors import LoadError

logger = logging.getLogger("cenote")

# auto: sigmoid of a single logit, softmax of several
ACTIVATION_NAMES = ("auto", "sigmoid", "identity", "tanh", "relu", "gelu", "silu")
ACTIVATION_BY_LABELS = "number of labels"  # source of an activation that no file names
TORCH_MODULES_PREFIX = "torch.nn.modules."


def resolve_classification_activation(config: Mapping[str, Any]) -> Sourced[str]:
    """Return the name of the activation that a classifier's config.json specifies."""
    by_problem = {
        "regression": "identity",
        "single_label_classification": "auto",
        "multi_label_classification": "sigmoid",
    }
    if (problem := config.get("problem_type")) in by_problem:
        return Sourced(by_problem[problem], f"config.json problem_type {problem}")
    for key, name in (
        ("sentence_transformers.activation_fn", (config.get("sentence_transformers") or {}).get("activation_fn")),
        ("sbert_ce_default_activation_function", config.get("sbert_ce_default_activation_function")),
    ):
        if name is not None:
            return Sourced(_parse_torch_activation(str(name)), f"config.json {key}")
    if config.get("num_labels") == 0:
        logger.warning("num_labels is 0 in config.json; applying sigmoid to logits")
        return Sourced("sigmoid", "config.json num_labels")
    return Sourced("auto", ACTIVATION_BY_LABELS)


def _parse_torch_activation(qualified_name: str) -> str:
    if not qualified_name.startswith(TORCH_MODULES_PREFIX):
        raise LoadError(
            f"Loading of activation functions is restricted to torch.nn.modules for security reasons: got "
            f"{qualified_name!r}"
        )
    name = qualified_name.rsplit(".", 1)[-1].lower()
    name = "auto" if name in ("sigmoid", "softmax") else name  # depends on the actual number of logits
    if name not in ACTIVATION_NAMES:
        raise LoadError(
            f"unsupported activation {qualified_name!r} for logits; expected one of: "
            f"{', '.join(sorted(ACTIVATION_NAMES))}"
        )
    return name
