"""Score queries against documents; importing the package registers all scorers."""

from cenote.scoring import (  # noqa: F401  each registers its scorer
    bi_encoder,
    cross_encoder,
    late_interaction,
    listwise,
    sparse,
)
