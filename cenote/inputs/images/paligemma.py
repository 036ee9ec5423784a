"""Image processor of PaliGemma: a fixed-size image, one token per patch, placed before the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from cenote.inputs.images.fixed_size import FixedSizeImageProcessor
from cenote.inputs.images.image_processor import repeat_token
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import ProcessedImage

if TYPE_CHECKING:
    from PIL.Image import Image


class PaliGemmaImageProcessor(FixedSizeImageProcessor):
    NUM_ADDED_TOKENS = 2

    def resolve_token_ids(self) -> None:
        super().resolve_token_ids()
        self.bos_token_id, self.newline_token_id = self.require_token_id("<bos>"), self.require_token_id("\n")

    def _preprocess(self, image: Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        side = self.spec.options["image_size"] // self.spec.patch_size
        self.check_num_tokens(side * side, image, param_path)
        image_only = super()._preprocess(image, options, param_path)
        assert self.spec.image_token_id is not None, "set by the model family"
        token_ids, is_embed = repeat_token(self.spec.image_token_id, len(image_only.patches))
        return replace(image_only, token_ids=token_ids, is_embed=is_embed)

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        """Move <bos> after the last image and end the text with a newline, unless the prompt already has this form."""
        ids = token_ids[1:] if self.bos_token_id in token_ids[:1] else token_ids
        placeholders = np.flatnonzero(ids == self.placeholder_id)
        start = int(placeholders[-1]) + 1 if len(placeholders) else 0
        images, text = ids[:start], ids[start:]
        bos = [] if self.bos_token_id in text[:1] else [self.bos_token_id]
        newline = [] if self.newline_token_id in text[-1:] else [self.newline_token_id]
        return np.concatenate((images, bos, text, newline)).astype(np.int32)
