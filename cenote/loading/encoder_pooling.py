"""Pooling of published encoders without Sentence Transformers files, which their pages describe."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.model_card import ModelCard, list_names
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.architecture import Architecture, HFConfig, StoredProjection

# encoders that were published for any use: their names say nothing about pooling
GENERAL_ENCODERS = (
    *("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "DistilBertModel", "ElectraModel"),
    *("AlbertModel", "MPNetModel", "DebertaModel", "DebertaV2Model", "ModernBertModel"),
)
POOLER = StoredProjection(weights=("pooler.dense",), activation="tanh", is_pooler=True)


@dataclass(frozen=True, slots=True)
class KnownEncoder:
    """What the page of a published encoder says about its embeddings."""

    name_pattern: re.Pattern[str]  # of the name without owner
    normalize: bool = False
    max_length: int | None = None
    has_pooler: bool = False  # the embedding is the output of the pooler, not the state that it reads
    similarity: str | None = "dot"


def _published(pattern: str, **facts: bool | int | str | None) -> KnownEncoder:
    return KnownEncoder(re.compile(pattern, re.IGNORECASE), **facts)  # type: ignore[arg-type]


# all of them read the first token
KNOWN_ENCODERS = (
    _published(r"medcpt-query-encoder", max_length=64),
    _published(r"medcpt-article-encoder"),
    _published(r"specter(2|2_base|2_aug2023refresh_base)?", similarity=None),
    _published(r"scincl", similarity=None),
    # as the package of SimCSE uses them
    _published(r"sup-simcse-(bert|roberta)-.*", normalize=True, has_pooler=True, similarity=None),
    _published(r"unsup-simcse-(bert|roberta)-.*", normalize=True, similarity=None),
)


def apply_known_encoder(
    options: EngineConfig,
    checkpoint: Checkpoint,
    config: HFConfig,
    family: Architecture,
    files: SentenceTransformersFiles,
) -> tuple[Architecture, SentenceTransformersFiles]:
    """Return the settings of a known encoder as if files of Sentence Transformers had them; such files win."""
    if files.pooling is not None or not any(name in GENERAL_ENCODERS for name in config.get("architectures") or ()):
        return family, files
    for name, source in list_names(checkpoint, config, ModelCard.from_checkpoint(checkpoint)):
        for known in KNOWN_ENCODERS:
            if known.name_pattern.fullmatch(name):
                # an option names a pooling of hidden states, as in vLLM
                uses_pooler = known.has_pooler and options.pooler_config.seq_pooling_type is None
                settings = replace(
                    files,
                    pooling=Sourced(("CLS",), f"{source}, with the pooler" if uses_pooler else source),
                    normalize=Sourced(known.normalize, source),
                    max_length=files.max_length or (known.max_length and Sourced(known.max_length, source)) or None,
                    similarity_fn_name=files.similarity_fn_name or known.similarity,
                )
                return (replace(family, projection=POOLER) if uses_pooler else family), settings
    return family, files
