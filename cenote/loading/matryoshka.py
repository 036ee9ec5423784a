"""Find the embedding sizes that a model was trained for: in config.json, in its model card, or by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cenote.config.engine import EngineConfig
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.model_card import ModelCard, list_names
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import CheckpointKind
from cenote.protocol.matryoshka import Matryoshka

MATRYOSHKA_TAG = "loss:MatryoshkaLoss"  # written by the trainer of Sentence Transformers


@dataclass(frozen=True, slots=True)
class TrainedSizes:
    """Sizes named on the page of a published model: a list, or any size from `min_size`."""

    name_pattern: re.Pattern[str]  # of the name without owner
    sizes: tuple[int, ...] = ()
    min_size: int = 1
    has_layer_norm: bool = False  # before the cut, without weights


def _published(pattern: str, *sizes: int, min_size: int = 1, has_layer_norm: bool = False) -> TrainedSizes:
    return TrainedSizes(re.compile(pattern, re.IGNORECASE), sizes, min_size, has_layer_norm)


# published models whose config.json has neither matryoshka_dimensions nor is_matryoshka; sizes from their pages
KNOWN_SIZES = (
    _published(r"nomic-embed-text-v1\.5", min_size=64, has_layer_norm=True),
    _published(r"nomic-embed-text-v2-moe", 256, 768),
    _published(r"(nomic-)?modernbert-embed-base", 256, 768),
    _published(r"modernbert-embed-large", 256, 1024),
    _published(r"mxbai-embed-(2d-)?large-v1", min_size=64),
    _published(r"deepset-mxbai-embed-de-large-v1", min_size=64),
    _published(r"mxbai-embed-xsmall-v1", min_size=64),
    _published(r"qwen3-embedding-[\d.]+b", min_size=32),
    _published(r"qwen3-vl-embedding-[\d.]+b", min_size=64),
    _published(r"embeddinggemma-300m", 128, 256, 512, 768),
    _published(r"snowflake-arctic-embed-m-v1\.5", 256, 768),
    _published(r"snowflake-arctic-embed-m-v2\.0", 256, 768),
    _published(r"snowflake-arctic-embed-l-v2\.0", 256, 1024),
    _published(r"gte-multilingual-base", min_size=128),
    _published(r"jina-embeddings-v3(-hf)?", 32, 64, 128, 256, 512, 768, 1024),
    _published(r"jina-embeddings-v4.*", 128, 256, 512, 1024, 2048),
    _published(r"jina-embeddings-v5-text-small.*", 32, 64, 128, 256, 512, 768, 1024),
    _published(r"jina-embeddings-v5-text-nano.*", 32, 64, 128, 256, 512, 768),
    _published(r"jina-code-embeddings-0\.5b", 64, 128, 256, 512, 896),
    _published(r"jina-code-embeddings-1\.5b", 128, 256, 512, 1024, 1536),
    _published(r"granite-embedding-311m-multilingual-r2", 128, 256, 384, 512, 768),
    _published(r"bekko-embedding-v1-a(8|25)m", 64, 128, 256, 384),
    _published(r"mmbert-embed-32k-2d-matryoshka", 64, 128, 256, 512, 768),
    _published(r"pplx-embed-(context-)?v1-[\d.]+b", min_size=128),
    _published(r"voyage-4-nano", 256, 512, 1024, 2048),
    _published(r"llama-(3\.2-)?(nv-embedqa|nemotron-embed)-1b-v2", 384, 512, 768, 1024, 2048),
    _published(r"kalm-embedding-multilingual-mini-instruct-v2(\.5)?", 64, 128, 256, 512, 896),
)


def resolve_matryoshka(
    config: HFConfig,
    checkpoint: Checkpoint,
    files: SentenceTransformersFiles,
    kind: CheckpointKind,
    architecture: Architecture,
    options: EngineConfig,
) -> Matryoshka:
    """Return the full embedding size and the smaller ones that a request may ask for, with their source."""
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
    found = (_find_known_sizes(config, checkpoint, full) if kind == "embed" else None) or Matryoshka(
        False, (), full, source="config.json has neither matryoshka_dimensions nor is_matryoshka"
    )
    if sizes or "is_matryoshka" in config.values:
        is_supported = bool(sizes) or bool(config.get("is_matryoshka"))
        found = replace(found, is_supported=is_supported, sizes=sizes, min_size=1, source="config.json")
    if kind == "embed" and files.truncate_dim is not None and files.truncate_dim.value < full:
        found = replace(found, default_size=files.truncate_dim.value)
    return found


def _find_known_sizes(config: HFConfig, checkpoint: Checkpoint, full: int) -> Matryoshka | None:
    """Return the sizes of a published model that the files identify; None if there is no evidence."""
    card = ModelCard.from_checkpoint(checkpoint)
    for name, source in list_names(checkpoint, config, card):
        for known in KNOWN_SIZES:
            # a list that does not contain the full size belongs to another model of that name
            if known.name_pattern.fullmatch(name) and (not known.sizes or full in known.sizes):
                found = Matryoshka(True, known.sizes, full, min_size=min(known.min_size, full), source=source)
                return replace(found, has_layer_norm=known.has_layer_norm)
    if MATRYOSHKA_TAG in card.tags:
        return Matryoshka(True, (), full, source=f"README.md tag {MATRYOSHKA_TAG}")
    return None
