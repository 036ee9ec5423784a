"""What reads the images of one model: the base of all kinds of readers, and the table of them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from cenote.errors import BadRequest, InputTooLong, LoadError
from cenote.inputs.images.processor_options import SIZES, shortened, wrong_option
from cenote.inputs.tokenized_inputs import Integers
from cenote.inputs.tokenizer import TokenIds
from cenote.models.vision_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

BAND_PIXELS = 1024**2
MOST_NAMED = 8  # options in a message
# the name in an ImageSpec -> module:class, imported on use
READERS = {
    "qwen_vl": "qwen_vl:QwenReader",
    "resized": "fixed_size:ResizedReader",
    "naflex": "naflex:NaFlexReader",
    "paligemma": "paligemma:PaliGemmaReader",
    "idefics3": "idefics3:Idefics3Reader",
    "nemotron": "nemotron:NemotronReader",
    "llava_next": "llava_next:LlavaNextReader",
    "phi3v": "phi3v:Phi3VReader",
}


class ImageReader(ABC):
    """One model's way. Options of the server and of requests may change what its files say, by the names in KNOWN."""

    KNOWN: ClassVar[tuple[str, ...]] = ()
    SMALLER: ClassVar[str] = "max_pixels"  # the one of them that makes images smaller
    NUM_ADDED: ClassVar[int] = 0  # tokens that `laid_out` adds to a prompt at most

    def __init__(
        self,
        spec: ImageSpec,
        files: ProcessorFiles,
        token_id: Callable[[str], int | None],
        max_tokens: int,
        options: Mapping[str, Any],
    ) -> None:
        """`token_id` looks a token up in the vocabulary, `max_tokens` is what the model reads at most."""
        self.spec = spec
        self.files = replace(files, image=self.written(files.image))
        self.token_id = token_id
        self.max_tokens = max_tokens
        if wrong := wrong_option({name: value for name, value in self.files.image.items() if self._reads(name)}):
            raise LoadError(f"preprocessor_config.json, or image_processor in processor_config.json: {wrong}")
        self.options = self._checked(options)  # of the server
        self.look_up()

    def written(self, image: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the files say of images, in the words of this reader."""
        return image

    def look_up(self) -> None:
        """Find the tokens that every prompt needs."""
        mark = self.spec.token or self.spec.mark
        self.mark_id = self.required_token(mark) if self.spec.mark else None

    def read(self, image: Image, given: Mapping[str, Any], where: str) -> Picture:
        """The image as the tower and the prompt need it; `given` are a request's own options, `where` is its name."""
        said = {**self.files.image, **self.options, **self._checked(given)}
        options = {name: value for name, value in said.items() if value is not None}
        try:
            return self.picture(image, options, where)
        except BadRequest as error:
            if where not in error.message:
                error.message = f"{where}: {error.message}"
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            how = f" with mm_processor_kwargs={shortened(dict(given))}" if given else ""
            raise BadRequest(
                f"{where}: an image of {image.width} x {image.height} pixels cannot be read{how}: {error}",
                param="mm_processor_kwargs" if given else where,
            ) from error

    @abstractmethod
    def picture(self, image: Image, options: Mapping[str, Any], where: str) -> Picture:
        """Resize, cut, normalise; ask `check_tokens` before anything large is made."""

    def most_bytes(self) -> int | None:
        """What an input's pictures take at most, where that is known before an image is seen."""
        return None

    def marked(self, text: str) -> str:
        """A prompt with images, each marked by one token."""
        return text.replace(self.spec.mark, self.spec.token) if self.spec.token else text

    def laid_out(self, token_ids: TokenIds) -> TokenIds:
        """A prompt with images as the model wants it around them; each of them is a single mark yet."""
        return token_ids

    def axes(self, token_ids: TokenIds, pictures: Sequence[Picture], rows: Integers) -> Integers | None:
        """[axes, tokens], where a position is several numbers; `rows` are the tokens that the tower fills."""
        return None

    def _reads(self, name: str) -> bool:
        """Whether an option of the files matters; sizes are written by some that cut images in another way."""
        return name in self.KNOWN or name not in SIZES

    def required_token(self, token: str) -> int:
        found = self.token_id(token)
        if found is None:
            raise LoadError(f"the tokenizer has no token {token!r}, which this model's images need")
        return found

    def check_tokens(self, count: int, image: Image, where: str) -> None:
        if count > self.max_tokens:
            raise InputTooLong(
                f"{where}: an image of {image.width} x {image.height} pixels becomes {count} tokens, and this model "
                f"reads {self.max_tokens} at most; give a smaller one, or lower {self.SMALLER} in mm_processor_kwargs",
                param="input_tokens",
                value=count,
            )

    def key(self, image: Image, options: Mapping[str, Any]) -> bytes:
        """Of an image, and of the options that may differ from request to request."""
        changed = repr([(name, options.get(name)) for name in self.KNOWN])
        digest = hashlib.blake2b(f"{image.size} {changed}".encode(), digest_size=16)
        rows = max(1, BAND_PIXELS // image.width)
        for top in range(
            0, image.height, rows
        ):  # a large image is not copied as a whole, and other threads get their turn
            band = image.crop((0, top, image.width, min(top + rows, image.height)))
            digest.update(band.tobytes())
        return digest.digest()

    def _checked(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if unknown := [name for name in given if name not in self.KNOWN]:
            known = ", ".join(self.KNOWN) or "none"
            named = ", ".join(map(shortened, unknown[:MOST_NAMED])) + (", ..." if len(unknown) > MOST_NAMED else "")
            raise BadRequest(
                f"mm_processor_kwargs has {named}, which this model's images do not have; there are: {known}",
                param="mm_processor_kwargs",
            )
        if wrong := wrong_option(given):
            raise BadRequest(f"mm_processor_kwargs: {wrong}", param="mm_processor_kwargs")
        return {name: value for name, value in given.items() if value is not None}


def reader_of(
    spec: ImageSpec,
    files: ProcessorFiles,
    token_id: Callable[[str], int | None],
    max_tokens: int,
    options: Mapping[str, Any],
) -> ImageReader:
    module, name = READERS[spec.reader].split(":")
    kind: type[ImageReader] = getattr(import_module(f"cenote.inputs.images.{module}"), name)
    return kind(spec, files, token_id, max_tokens, options)


def repeated(token_id: int, count: int) -> tuple[TokenIds, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The tokens of a picture that are nothing but its rows, and that all of them are."""
    return np.full(count, token_id, dtype=np.int32), np.ones(count, dtype=bool)
