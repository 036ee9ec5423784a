"""Score queries against documents; importing the package registers all scorers."""

from cenote.scoring import (  # noqa: F401  each registers its scorer
    cross_encoder,
    late_interaction,
    listwise,
    separate_encoding,
)
