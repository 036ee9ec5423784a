"""From two lists of inputs to scores."""

from cenote.scoring import bi_encoder, cross_encoder, late_interaction  # noqa: F401  each registers its scorer
