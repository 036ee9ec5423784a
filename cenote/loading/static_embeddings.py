"""Static embeddings have no config.json, or one without sizes: derive it from the shapes of the weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tokenizers import processors

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.model_description import ModelDescription
from cenote.loading.module_list import STATIC_KINDS, read_module_list
from cenote.loading.sentence_transformers import SentenceTransformersFiles
from cenote.loading.tokenizer_files import TokenizerFiles, read_tokenizer_max_length
from cenote.loading.weights import has_weights, open_weights
from cenote.models.architecture import HFConfig
from cenote.models.registry import ArchitectureEntry

MODEL2VEC = "StaticModel"
# keys of the derived config: what its sizes were read from, and which could not be read
SIZE_SOURCE, UNKNOWN_SIZES = "size_source", "unknown_sizes"
# names of the table of embeddings: of StaticEmbedding, of model2vec, of SparseStaticEmbedding
TABLE_NAMES = ("embedding.weight", "embeddings", "weight")
# the embeddings of all tokens of a text are in memory at once; Sentence Transformers has no limit
MAX_LENGTH = 131072
TRUNCATION_LENGTH = re.compile(r'"truncation":\s*{[^}]*"max_length":\s*(\d+)')
TOKENIZER_HEAD_CHARS = 4096  # of tokenizer.json, which begins with the truncation


def read_static_config(checkpoint: Checkpoint, *, needs_weights: bool = True) -> dict[str, Any] | None:
    """Return a config.json for static embeddings, with the sizes of the table; None for other models.

    Without `needs_weights` the weights may be missing; sizes that config.json does not have are then unknown.
    """
    architecture = _find_architecture(checkpoint)
    if architecture is None:
        return None
    stored = checkpoint.read_json_object("config.json")
    if stored.get("path") is not None:
        raise LoadError(
            f"{checkpoint.encoder_path / 'config.json'}: path {stored['path']!r} is not supported; save the model with "
            "Sentence Transformers 5 or newer, which stores the weights in model.safetensors"
        )
    return {
        **stored,
        "architectures": [architecture],
        "model_type": "static_embedding",
        **(_read_sizes(checkpoint) if needs_weights or has_weights(checkpoint) else _guess_sizes(stored)),
        # model2vec leaves out the unknown token, Sentence Transformers does not: the files decide which one is meant
        "drops_unknown_tokens": architecture == MODEL2VEC,
    }


def read_model2vec_settings(config: HFConfig, files: SentenceTransformersFiles) -> SentenceTransformersFiles:
    """Return the settings of a model2vec model without Sentence Transformers files, which are in config.json."""
    if files.normalize is not None or MODEL2VEC not in config.get("architectures", ()):
        return files
    normalizes = bool(config.get("normalize", False))
    return replace(files, normalize=Sourced(normalizes, "config.json normalize"))


def resolve_static_length(checkpoint: Checkpoint, entry: ArchitectureEntry) -> Sourced[int]:
    """Return the maximum length: that of the tokenizer's files, which is where Sentence Transformers truncates."""
    if entry.kind == "sparse":
        length, file = read_tokenizer_max_length(checkpoint), "tokenizer_config.json"
    else:
        with checkpoint.require_file("tokenizer.json").open(encoding="utf-8") as stream:
            found = TRUNCATION_LENGTH.search(stream.read(TOKENIZER_HEAD_CHARS))
        length, file = None if found is None else int(found[1]), "tokenizer.json truncation"
    return Sourced(MAX_LENGTH, "limit for static embeddings") if length is None else Sourced(length, file)


def has_plain_tokenizer(description: ModelDescription) -> bool:
    """Whether Sentence Transformers and model2vec use tokenizer.json without a tokenizer class of Transformers."""
    return description.architecture.is_static and description.entry.kind != "sparse"


def without_special_tokens(files: TokenizerFiles) -> TokenizerFiles:
    """Return the tokenizer without its template of special tokens."""
    tokenizer = files.tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    return files


def _find_architecture(checkpoint: Checkpoint) -> str | None:
    """Return the kind of the first module, or that of model2vec; None if the model is not static."""
    if steps := read_module_list(checkpoint):
        return steps[0].kind if steps[0].kind in STATIC_KINDS else None
    names = checkpoint.read_json_object("config.json").get("architectures") or ()
    return MODEL2VEC if MODEL2VEC in names else None


def _read_sizes(checkpoint: Checkpoint) -> dict[str, Any]:
    weights = open_weights(checkpoint)
    name = next((name for name in TABLE_NAMES if name in weights), None)
    if name is None:
        found = ", ".join(weights.names()[:5]) or "nothing"
        raise LoadError(f"{weights.source}: no table of embeddings ({', '.join(TABLE_NAMES)}); found {found}")
    table = weights.shape(name)
    rows = weights.shape("mapping") if "mapping" in weights else table
    size = table[1] if len(table) > 1 else 1
    return {"vocab_size": rows[0], "hidden_size": size, SIZE_SOURCE: f"shape of {name} in {weights.source.name}"}


def _guess_sizes(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the size that a config.json of model2vec has; others are 1 and named as unknown."""
    size = stored.get("hidden_dim")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        unknown = {UNKNOWN_SIZES: ("vocab_size", "hidden_size"), SIZE_SOURCE: "the weights, which are missing"}
        return {"vocab_size": 1, "hidden_size": 1, **unknown}
    known = {"hidden_size": size, SIZE_SOURCE: "config.json hidden_dim"}
    return {"vocab_size": 1, UNKNOWN_SIZES: ("vocab_size",), **known}
