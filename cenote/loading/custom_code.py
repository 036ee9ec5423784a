"""What a repository's own code (`auto_map` of config.json) changes, for known repositories; the code is never run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from cenote.loading.checkpoint import Checkpoint
from cenote.loading.module_list import read_module_list
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.registry import EXACT_NAMES, ArchitectureEntry

# decoders of the Transformers library: code of a repository that replaces one of them changes something
LIBRARY_DECODERS = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "phi3", "granite", "gpt2", "olmo", "olmo2", "olmo3", "ministral3"),
)
BIDIRECTIONAL: Mapping[str, Any] = MappingProxyType({"is_causal": False})


@dataclass(frozen=True, slots=True)
class KnownCode:
    """Published code, how its checkpoints are recognised, and the config.json keys that stand for what it does."""

    changes: Mapping[str, Any]
    unless: str  # key of config.json that says the same
    code: re.Pattern[str] | None = None  # of the AutoModel entry of auto_map
    module: str | None = None  # of modules.json
    name: re.Pattern[str] | None = None  # of the checkpoint, if the entry does not identify the code
    doubt: str | None = None  # if the source is not certain


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


def apply_known_code(checkpoint: Checkpoint, config: HFConfig) -> tuple[HFConfig, str | None]:
    """Return the config with the keys that known code stands for, unless config.json decides the same; and a doubt."""
    code = _auto_model(config)
    modules = [module.kind for module in read_module_list(checkpoint)]
    names = (*checkpoint.candidate_names, str(config.get("_name_or_path", "")))
    for known in KNOWN_CODE:
        matches_code = (known.code is not None and known.code.search(code)) or known.module in modules
        if known.unless not in config and (matches_code or _matches_name(known, names)):
            doubt = None if known.doubt is None else f"{config.source} {known.doubt}"
            return HFConfig({**config.values, **known.changes}, config.source), doubt
    return config, None


def find_attention_doubt(config: HFConfig, entry: ArchitectureEntry, architecture: Architecture) -> str | None:
    """Return a warning if the repository replaces a causal decoder by its own code, which may be bidirectional."""
    code = _auto_model(config)
    is_replaced = bool(code) and config.get("model_type") in LIBRARY_DECODERS and "is_causal" not in config
    # architectures with a name of their own are implemented after that code
    is_library_name = entry.is_native and entry.name not in EXACT_NAMES
    if not (is_replaced and is_library_name and architecture.backbone.causal):
        return None
    return (
        f"{config.source}: auto_map replaces {entry.name} by {code}, which is not run: attention is causal; if that "
        'code is bidirectional, embeddings are wrong without hf_overrides={"is_causal": false}'
    )


def _auto_model(config: HFConfig) -> str:
    auto_map = config.get("auto_map", {})
    return str(auto_map.get("AutoModel", "")) if isinstance(auto_map, Mapping) else ""


def _matches_name(known: KnownCode, names: tuple[str, ...]) -> bool:
    return known.name is not None and any(known.name.search(name) for name in names)
