"""Published models by name: what their pages, or their own code, say and their files do not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# encoders that were published for any use: their names say nothing about pooling
GENERAL_ENCODERS = (
    *("BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "DistilBertModel", "ElectraModel"),
    *("AlbertModel", "MPNetModel", "DebertaModel", "DebertaV2Model", "ModernBertModel"),
)
# decoders of the Transformers library: code of a repository that replaces one of them changes something
LIBRARY_DECODERS = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "granite", "gpt2", "olmo", "olmo2", "olmo3", "ministral3"),
)
# trained without pooling the instruction
PROMPT_EXCLUDED_NAMES = re.compile(r"instructor-(base|large|xl)")
# a reranker whose config.json names its backbone only
UNNAMED_RERANKER = re.compile(r"jina[-_]reranker[-_]v1", re.IGNORECASE)
# merged checkpoints of a vision-language model, whose files do not say how images are pooled
MERGED_IMAGE_EMBEDDER = "jina-embeddings-v4-vllm-"


@dataclass(frozen=True, slots=True)
class TrainedSizes:
    """Sizes named on the page of a published model: a list, or any size from `min_size`."""

    name_pattern: str  # of the name without owner, in any case
    sizes: tuple[int, ...] = ()
    min_size: int = 1
    has_layer_norm: bool = False  # before the cut, without weights


@dataclass(frozen=True, slots=True)
class KnownEncoder:
    """What the page of a published encoder says about its embeddings."""

    name_pattern: str  # of the name without owner, in any case
    normalize: bool = False
    max_length: int | None = None
    has_pooler: bool = False  # the embedding is the output of the pooler, not the state that it reads
    similarity: str | None = "dot"


@dataclass(frozen=True, slots=True)
class KnownCode:
    """Published code, how its checkpoints are recognised, and the config.json keys that stand for what it does."""

    changes: Mapping[str, Any]
    unless: str  # key of config.json that says the same
    code: re.Pattern[str] | None = None  # of the AutoModel entry of auto_map
    module: str | None = None  # of modules.json
    name: re.Pattern[str] | None = None  # of the checkpoint, if the entry does not identify the code
    doubt: str | None = None  # if the source is not certain


# published models whose config.json has neither matryoshka_dimensions nor is_matryoshka; sizes from their pages
KNOWN_SIZES = (
    TrainedSizes(r"nomic-embed-text-v1\.5", min_size=64, has_layer_norm=True),
    TrainedSizes(r"nomic-embed-text-v2-moe", (256, 768)),
    TrainedSizes(r"(nomic-)?modernbert-embed-base", (256, 768)),
    TrainedSizes(r"modernbert-embed-large", (256, 1024)),
    TrainedSizes(r"mxbai-embed-(2d-)?large-v1", min_size=64),
    TrainedSizes(r"deepset-mxbai-embed-de-large-v1", min_size=64),
    TrainedSizes(r"mxbai-embed-xsmall-v1", min_size=64),
    TrainedSizes(r"qwen3-embedding-[\d.]+b", min_size=32),
    TrainedSizes(r"qwen3-vl-embedding-[\d.]+b", min_size=64),
    TrainedSizes(r"embeddinggemma-300m", (128, 256, 512, 768)),
    TrainedSizes(r"snowflake-arctic-embed-m-v1\.5", (256, 768)),
    TrainedSizes(r"snowflake-arctic-embed-m-v2\.0", (256, 768)),
    TrainedSizes(r"snowflake-arctic-embed-l-v2\.0", (256, 1024)),
    TrainedSizes(r"gte-multilingual-base", min_size=128),
    TrainedSizes(r"jina-embeddings-v3(-hf)?", (32, 64, 128, 256, 512, 768, 1024)),
    TrainedSizes(r"jina-embeddings-v4.*", (128, 256, 512, 1024, 2048)),
    TrainedSizes(r"jina-embeddings-v5-text-small.*", (32, 64, 128, 256, 512, 768, 1024)),
    TrainedSizes(r"jina-embeddings-v5-text-nano.*", (32, 64, 128, 256, 512, 768)),
    TrainedSizes(r"jina-code-embeddings-0\.5b", (64, 128, 256, 512, 896)),
    TrainedSizes(r"jina-code-embeddings-1\.5b", (128, 256, 512, 1024, 1536)),
    TrainedSizes(r"granite-embedding-311m-multilingual-r2", (128, 256, 384, 512, 768)),
    TrainedSizes(r"bekko-embedding-v1-a(8|25)m", (64, 128, 256, 384)),
    TrainedSizes(r"mmbert-embed-32k-2d-matryoshka", (64, 128, 256, 512, 768)),
    TrainedSizes(r"pplx-embed-(context-)?v1-[\d.]+b", min_size=128),
    TrainedSizes(r"voyage-4-nano", (256, 512, 1024, 2048)),
    TrainedSizes(r"llama-(3\.2-)?(nv-embedqa|nemotron-embed)-1b-v2", (384, 512, 768, 1024, 2048)),
    TrainedSizes(r"kalm-embedding-multilingual-mini-instruct-v2(\.5)?", (64, 128, 256, 512, 896)),
)
# all of them read the first token
KNOWN_ENCODERS = (
    KnownEncoder(r"medcpt-query-encoder", max_length=64),
    KnownEncoder(r"medcpt-article-encoder"),
    KnownEncoder(r"specter(2|2_base|2_aug2023refresh_base)?", similarity=None),
    KnownEncoder(r"scincl", similarity=None),
    # as the package of SimCSE uses them
    KnownEncoder(r"sup-simcse-(bert|roberta)-.*", normalize=True, has_pooler=True, similarity=None),
    KnownEncoder(r"unsup-simcse-(bert|roberta)-.*", normalize=True, similarity=None),
)
BIDIRECTIONAL: Mapping[str, Any] = MappingProxyType({"is_causal": False})
# of the model card of jina-reranker-v3.5: three layers with a window, two without; the last of 28 without
JINA_WINDOWS: Mapping[str, Any] = MappingProxyType(
    {
        "sliding_window": 1024,
        "layer_types": [
            "sliding_attention" if layer % 5 < 3 and layer < 27 else "full_attention" for layer in range(28)
        ],
    }
)

KNOWN_CODE = (
    KnownCode({"architectures": ["GritLM"]}, "is_causal", re.compile(r"(^|--)modeling_gritlm7b\.MistralModel$")),
    KnownCode(
        {"architectures": ["GmeQwen2VL"]},
        "is_causal",
        re.compile(r"(^|--)modeling_gme_qwen2vl\.GmeQwen2VL$"),
        module="MultiModalTransformer",
    ),
    # gte-Qwen2, gte-Qwen1.5, stella_en_1.5B_v5, inf-retriever
    KnownCode(BIDIRECTIONAL, "is_causal", re.compile(r"(^|--)modeling_qwen\.Qwen2Model$")),
    KnownCode(
        BIDIRECTIONAL,
        "is_causal",
        name=re.compile(r"KaLM[-_]embedding[-_]multilingual[-_]mini[-_]instruct[-_]v2", re.I),
    ),
    KnownCode(
        JINA_WINDOWS,
        "layer_types",
        name=re.compile(r"jina[-_]reranker[-_]v3[._]5", re.I),
        doubt="has no layer_types; windows follow the model card (three layers with a window of 1024, two without, the "
        'last without); hf_overrides={"layer_types": [...]} sets others',
    ),
)
