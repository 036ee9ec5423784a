"""Architecture name -> family, as strings that are imported on use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig

Form = Literal["causal", "embed", "sequence", "token"]
Family = Callable[[HFConfig], Architecture]

# what comes before the suffix -> module:function
FAMILIES = {
    "Bert": "bert:bert",
    "Roberta": "bert:roberta",
    "XLMRoberta": "bert:roberta",
    "ModernBert": "modernbert:modernbert",
    "Qwen2": "qwen:qwen2",
    "Qwen3": "qwen:qwen3",
}

# the first suffix that fits says what the checkpoint holds above its backbone
SUFFIXES: tuple[tuple[str, Form], ...] = (
    ("ForCausalLM", "causal"),
    ("ForConditionalGeneration", "causal"),
    ("ChatModel", "causal"),
    ("LMHeadModel", "causal"),
    ("ForMaskedLM", "embed"),
    ("ForTextEncoding", "embed"),
    ("EmbeddingModel", "embed"),
    ("ForSequenceClassification", "sequence"),
    ("ForTokenClassification", "token"),
    ("ClassificationModel", "sequence"),
    ("ForRewardModeling", "embed"),
    ("RewardModel", "embed"),
    ("Model", "embed"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in config.json, taken apart."""

    name: str
    family: Family
    form: Form


def find(names: list[str], source: str = "config.json") -> Entry:
    """The first name that we know; otherwise an error with every way on from there."""
    for name in names:
        for suffix, form in SUFFIXES:
            stem = name.removesuffix(suffix)
            if name.endswith(suffix) and stem in FAMILIES:
                return Entry(name, _import(FAMILIES[stem]), form)
    known = ", ".join(f"{stem}*" for stem in FAMILIES)
    raise LoadError(
        f"{source}: no architecture of {names or 'an empty list'} is known; there are: {known}. "
        'A checkpoint that is one of these under another name loads with hf_overrides={"architectures": ["..."]}'
    )


def _import(place: str) -> Family:
    module, function = place.split(":")
    family: Family = getattr(import_module(f"cenote.models.{module}"), function)
    return family
