"""What a family says of how its model sees: the tower, its weights, and how images are read for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cenote.layers.backbone import VisionTower
from cenote.models.weight_table import WeightTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpec:
    """How images become patches and tokens; numbers that files of the checkpoint may change are theirs to say."""

    processor: str  # the way of reading, one of those in cenote/inputs/images
    placeholder_token: (
        str  # the token of a prompt that stands for an image before it is read; empty: images are read alone
    )
    placeholder_prefix: str = ""  # what stands around the mark where no template writes it
    placeholder_suffix: str = ""
    separator: str = "\n"  # between images and the text beside them, where no template writes it
    prompt_token: str = (
        ""  # what the mark becomes before a prompt is tokenised; the mark itself when the vocabulary has it
    )
    image_token_id: int | None = None  # of the tokens that get what the tower sees; the mark's own when unset
    patch_size: int = 14
    merge_size: int = 1  # so many patches on each side become one token
    options: Mapping[str, Any] = field(default_factory=dict)  # what only this way of reading knows
    chat_template: str | None = None  # for conversations, where the checkpoint has none
    overrides_chat_template: bool = False  # or has one that was made for another model
    is_document_first: bool = False  # in what joins a pair, and so do its images
    single_modality_name: str | None = (
        None  # the name in messages of a model that reads either a text or an image, never both
    )

    @property
    def placeholder(self) -> str:
        """What stands for an image in a text that no template writes."""
        return self.placeholder_prefix + self.placeholder_token + self.placeholder_suffix


@dataclass(frozen=True, slots=True)
class ProcessorFiles:
    """What a checkpoint says of how images are read: two files of older ones, which newer ones write into one."""

    image_processor: Mapping[str, Any] = field(default_factory=dict)  # preprocessor_config.json: sizes, means, tiles
    processor: Mapping[str, Any] = field(
        default_factory=dict
    )  # processor_config.json: what holds for the prompt around


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionSpec:
    make_tower: Callable[[], VisionTower]
    weights: WeightTable  # our names in the tower -> the checkpoint's; `*` is the layer
    num_layers: int
    image_spec: ImageSpec
    prefixes: tuple[str, ...] = ("",)  # what may stand before every name
    alternative_weights: tuple[WeightTable, ...] = ()  # the same weights under the names of other programs
