"""Find the embedding sizes that a model was trained for: in config.json, in its model card, or by its name."""

from __future__ import annotations

import re
from dataclasses import replace

from cenote.config.engine import EngineConfig
from cenote.loading.family import Family
from cenote.loading.layouts.layout import Layout
from cenote.models.published_models import KNOWN_SIZES
from cenote.protocol.matryoshka import Matryoshka

MATRYOSHKA_TAG = "loss:MatryoshkaLoss"  # written by the trainer of Sentence Transformers


def resolve_matryoshka(options: EngineConfig, family: Family) -> Matryoshka:
    """Return the full embedding size and the smaller ones that a request may ask for, with their source."""
    config, files, architecture = family.layout.config, family.layout.files, family.architecture
    kind = family.kind.value
    if kind == "sparse":
        return Matryoshka(False, (), config.vocab_size)
    sizes = tuple(config.get("matryoshka_dimensions") or config.get("matryoshka_dims", ()))  # the second is of Jina
    widths = [step.out_features for step in files.projector if hasattr(step, "out_features")]
    by_flag = options.pooler_config.seq_pooling_type is not None
    methods = len(files.pooling.value) if files.pooling and not by_flag else 1
    # in some families, embedding_size is the size of the token embeddings
    is_of_tables = architecture.backbone.embedding_size is not None or "embed.tokens.weight" in architecture.weights
    named = None if is_of_tables else config.get("embedding_size")
    full = named or (widths[-1] if widths else architecture.output_size * methods)
    found = (_find_known_sizes(family.layout, full) if kind == "embed" else None) or Matryoshka(
        False, (), full, source="config.json has neither matryoshka_dimensions nor is_matryoshka"
    )
    if sizes or "is_matryoshka" in config.values:
        is_supported = bool(sizes) or bool(config.get("is_matryoshka"))
        found = replace(found, is_supported=is_supported, sizes=sizes, min_size=1, source="config.json")
    if kind == "embed" and files.truncate_dim is not None and files.truncate_dim.value < full:
        found = replace(found, default_size=files.truncate_dim.value)
    return found


def _find_known_sizes(layout: Layout, full: int) -> Matryoshka | None:
    """Return the sizes of a published model that the files identify; None if there is no evidence."""
    for name, source in layout.published_names:
        for known in KNOWN_SIZES:
            # a list that does not contain the full size belongs to another model of that name
            if re.fullmatch(known.name_pattern, name, re.IGNORECASE) and (not known.sizes or full in known.sizes):
                found = Matryoshka(True, known.sizes, full, min_size=min(known.min_size, full), source=source)
                return replace(found, has_layer_norm=known.has_layer_norm)
    if MATRYOSHKA_TAG in layout.card.tags:
        return Matryoshka(True, (), full, source=f"README.md tag {MATRYOSHKA_TAG}")
    return None
