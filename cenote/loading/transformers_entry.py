"""Describe a model that the Transformers library runs, because Cenote has no implementation of its architecture."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head
from cenote.models.registry import ArchitectureEntry, CheckpointKind, kind_from_name
from cenote.utils.install_commands import install_command

# model types that Transformers lists as causal, but which read texts in both directions; <cls> is the last token
PERMUTATION_TYPES = ("xlnet",)
# auto class per kind of checkpoint
AUTO_CLASSES: dict[CheckpointKind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "embed": "AutoModel",
}


def is_available() -> bool:
    return find_spec("transformers") is not None


def supports(names: list[str], config: HFConfig) -> bool:
    """Return whether the installed Transformers has a model of that name and type."""
    library: Any = import_module("transformers")
    return config.get("model_type") in library.CONFIG_MAPPING and any(hasattr(library, name) for name in names)


def transformers_entry(names: list[str], source: str) -> ArchitectureEntry:
    """Return an entry that is run by Transformers."""
    if not names:
        raise LoadError(f"{source} has no architectures, which the Transformers backend needs")
    if not is_available():
        raise LoadError(
            f"model_impl='transformers' requires the transformers package: {install_command('transformers')}"
        )
    kind = kind_from_name(names[0])
    return ArchitectureEntry(
        names[0],
        transformers_architecture,
        kind if kind in AUTO_CLASSES or kind in ("causal", "reward") else "embed",
        uses_transformers=True,
    )


def transformers_architecture(config: HFConfig) -> Architecture:
    """Return a minimal description; the backbone is the Transformers model."""
    text = HFConfig(config.get("text_config", config.values), config.source)
    size = text.get("hidden_size") or text.get("d_model") or text.get("n_embd") or text.get("dim")
    if size is None:
        raise LoadError(f"{config.source} has no hidden_size, d_model, n_embd or dim; the hidden size is unknown")
    causal = _is_causal(config)
    return Architecture(
        backbone=BackboneSpec(
            vocab_size=text.vocab_size,
            hidden_size=size,
            intermediate_size=size,
            num_layers=1,
            num_heads=1,
        ),
        weights={},
        pooling="LAST" if causal else "CLS",
        # placeholders: the heads of the Transformers model are used
        sequence_head=make_linear_head("classifier", pooling="CLS"),
        token_head=make_linear_head("classifier"),
        pairs_with_separator=not causal or config.get("model_type") in PERMUTATION_TYPES,
    )


def _is_causal(config: HFConfig) -> bool:
    """Return whether attention is causal, so that the last token is pooled, not the first."""
    if kind_from_name(next(iter(config.get("architectures", [])), "")) == "causal":
        return True
    known: Any = import_module("transformers.models.auto.modeling_auto")
    kind = config.get("model_type")
    # a causal LM type without an MLM variant; encoder-decoders have a bidirectional encoder
    is_decoder = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return is_decoder and not config.get("is_encoder_decoder", False)
