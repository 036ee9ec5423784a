"""Apply what is known about published models whose files leave it to a page, or to code, which is never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.loading.layouts.layout import Layout
from cenote.models.architecture import Architecture, HFConfig, StoredProjection
from cenote.models.published_models import GENERAL_ENCODERS, KNOWN_CODE, KNOWN_ENCODERS, LIBRARY_DECODERS
from cenote.models.registry import EXACT_NAMES, ArchitectureEntry

POOLER = StoredProjection(weights=("pooler.dense",), activation="tanh", is_pooler=True)


def apply_known_code(layout: Layout) -> Layout:
    """Return the layout with the keys that known code stands for, unless config.json decides the same; and a doubt."""
    config, code = layout.config, _auto_model(layout.config)
    for known in KNOWN_CODE:
        matches_code = known.code is not None and known.code.search(code)
        matches_module = known.module is not None and known.module == layout.files.encoder_kind
        matches_name = known.name is not None and any(map(known.name.search, layout.names))
        if known.unless not in config and (matches_code or matches_module or matches_name):
            changed = HFConfig({**config.values, **known.changes}, config.source)
            doubts = () if known.doubt is None else (f"{config.source} {known.doubt}",)
            return replace(layout, config=changed, doubts=doubts)
    return layout


def apply_known_encoder(options: EngineConfig, layout: Layout) -> Layout:
    """Return the settings of a known encoder as if files of Sentence Transformers had them; such files win."""
    files = layout.files
    architectures = layout.config.get("architectures") or ()
    if files.pooling is not None or not any(name in GENERAL_ENCODERS for name in architectures):
        return layout
    for name, source in layout.published_names:
        for known in KNOWN_ENCODERS:
            if re.fullmatch(known.name_pattern, name, re.IGNORECASE):
                # an option names a pooling of hidden states, as in vLLM
                uses_pooler = known.has_pooler and options.pooler_config.seq_pooling_type is None
                settings = replace(
                    files,
                    pooling=Sourced(("CLS",), f"{source}, with the pooler" if uses_pooler else source),
                    normalize=Sourced(known.normalize, source),
                    max_length=files.max_length or (known.max_length and Sourced(known.max_length, source)) or None,
                    similarity_fn_name=files.similarity_fn_name or known.similarity,
                )
                return replace(layout, files=settings, projection=POOLER if uses_pooler else None)
    return layout


def find_attention_doubt(config: HFConfig, entry: ArchitectureEntry, architecture: Architecture) -> str | None:
    """Return a warning if the repository replaces a causal decoder by its own code, which may be bidirectional."""
    code = _auto_model(config)
    is_replaced = bool(code) and config.get("model_type") in LIBRARY_DECODERS and "is_causal" not in config
    # architectures with a name of their own are implemented after that code
    is_library_name = not entry.uses_transformers and entry.name not in EXACT_NAMES
    if not (is_replaced and is_library_name and architecture.backbone.causal):
        return None
    return (
        f"{config.source}: auto_map replaces {entry.name} by {code}, which is not run: attention is causal; if that "
        'code is bidirectional, embeddings are wrong without hf_overrides={"is_causal": false}'
    )


def _auto_model(config: HFConfig) -> str:
    auto_map = config.get("auto_map", {})
    return str(auto_map.get("AutoModel", "")) if isinstance(auto_map, Mapping) else ""
