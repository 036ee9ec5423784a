"""PaliGemma's way: an image of one fixed size is as many tokens as it has patches, and the prompt begins behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

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
        picture = super()._preprocess(image, options, param_path)
        assert self.spec.image_token_id is not None, "the family says it"
        token_ids, seen = repeat_token(self.spec.image_token_id, len(picture.patches))
        return replace(picture, token_ids=token_ids, is_embed=seen)

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        """The token that begins a text stands behind the last image, not before the first, and a new line ends it.

        A prompt that is written like this already stays as it is.
        """
        ids = token_ids[1:] if self.bos_token_id in token_ids[:1] else token_ids
        marks = np.flatnonzero(ids == self.placeholder_id)
        start = int(marks[-1]) + 1 if len(marks) else 0
        images, text = ids[:start], ids[start:]
        begin = [] if self.bos_token_id in text[:1] else [self.bos_token_id]
        end = [] if self.newline_token_id in text[-1:] else [self.newline_token_id]
        return np.concatenate((images, begin, text, end)).astype(np.int32)
