"""PaliGemma's way: an image of one fixed size is as many tokens as it has patches, and the prompt begins behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.inputs.images.fixed_size import ResizedReader
from cenote.inputs.images.image_processor import repeated
from cenote.inputs.tokenizer import TokenIds
from cenote.protocol.images import Picture

if TYPE_CHECKING:
    from PIL.Image import Image


class PaliGemmaReader(ResizedReader):
    NUM_ADDED = 2

    def look_up(self) -> None:
        super().look_up()
        self.first, self.last = self.required_token("<bos>"), self.required_token("\n")

    def picture(self, image: Image, options: Mapping[str, Any], where: str) -> Picture:
        side = self.spec.options["image_size"] // self.spec.patch_size
        self.check_tokens(side * side, image, where)
        picture = super().picture(image, options, where)
        assert self.spec.image_token_id is not None, "the family says it"
        token_ids, seen = repeated(self.spec.image_token_id, len(picture.patches))
        return replace(picture, token_ids=token_ids, seen=seen)

    def laid_out(self, token_ids: TokenIds) -> TokenIds:
        """The token that begins a text stands behind the last image, not before the first, and a new line ends it.

        A prompt that is written like this already stays as it is.
        """
        ids = token_ids[1:] if self.first in token_ids[:1] else token_ids
        marks = np.flatnonzero(ids == self.mark_id)
        start = int(marks[-1]) + 1 if len(marks) else 0
        images, text = ids[:start], ids[start:]
        begin = [] if self.first in text[:1] else [self.first]
        end = [] if self.last in text[-1:] else [self.last]
        return np.concatenate((images, begin, text, end)).astype(np.int32)
