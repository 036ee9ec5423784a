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
from cenote.inputs.images.processor_options import SIZE_OPTIONS, validate_options
from cenote.inputs.tokenized_inputs import Int64Array
from cenote.inputs.tokenizer import TokenIds
from cenote.models.vision_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import ProcessedImage
from cenote.utils.text import short_repr

if TYPE_CHECKING:
    from PIL.Image import Image

HASH_BAND_PIXELS = 1024**2
MAX_LISTED_OPTIONS = 8  # options in a message
# the name in an ImageSpec -> module:class, imported on use
IMAGE_PROCESSORS = {
    "qwen_vl": "qwen_vl:QwenVLImageProcessor",
    "resized": "fixed_size:FixedSizeImageProcessor",
    "naflex": "naflex:NaFlexImageProcessor",
    "paligemma": "paligemma:PaliGemmaImageProcessor",
    "idefics3": "idefics3:Idefics3ImageProcessor",
    "nemotron": "nemotron:NemotronImageProcessor",
    "llava_next": "llava_next:LlavaNextImageProcessor",
    "phi3v": "phi3v:Phi3VImageProcessor",
}


class ImageProcessor(ABC):
    """One model's way. Options of the server and of requests may change what its files say, by the names in KNOWN."""

    SUPPORTED_OPTIONS: ClassVar[tuple[str, ...]] = ()
    SIZE_LIMIT_OPTION: ClassVar[str] = "max_pixels"  # the one of them that makes images smaller
    NUM_ADDED_TOKENS: ClassVar[int] = 0  # tokens that `laid_out` adds to a prompt at most

    def __init__(
        self,
        spec: ImageSpec,
        files: ProcessorFiles,
        token_to_id: Callable[[str], int | None],
        max_tokens: int,
        options: Mapping[str, Any],
    ) -> None:
        """`token_id` looks a token up in the vocabulary, `max_tokens` is what the model reads at most."""
        self.spec = spec
        self.files = replace(files, image_processor=self.normalize_config(files.image_processor))
        self.token_to_id = token_to_id
        self.max_tokens = max_tokens
        if wrong := validate_options(
            {name: value for name, value in self.files.image_processor.items() if self._is_relevant_option(name)}
        ):
            raise LoadError(f"preprocessor_config.json, or image_processor in processor_config.json: {wrong}")
        self.options = self._check_options(options)  # of the server
        self.resolve_token_ids()

    def normalize_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the files say of images, in the words of this reader."""
        return config

    def resolve_token_ids(self) -> None:
        """Find the tokens that every prompt needs."""
        mark = self.spec.prompt_token or self.spec.placeholder_token
        self.placeholder_id = self.require_token_id(mark) if self.spec.placeholder_token else None

    def preprocess(self, image: Image, overrides: Mapping[str, Any], param_path: str) -> ProcessedImage:
        """The image as the tower and the prompt need it; `given` are a request's own options, `where` is its name."""
        said = {**self.files.image_processor, **self.options, **self._check_options(overrides)}
        options = {name: value for name, value in said.items() if value is not None}
        try:
            return self._preprocess(image, options, param_path)
        except BadRequest as error:
            if param_path not in error.message:
                error.message = f"{param_path}: {error.message}"
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            how = f" with mm_processor_kwargs={short_repr(dict(overrides))}" if overrides else ""
            raise BadRequest(
                f"{param_path}: an image of {image.width} x {image.height} pixels cannot be read{how}: {error}",
                param="mm_processor_kwargs" if overrides else param_path,
            ) from error

    @abstractmethod
    def _preprocess(self, image: Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        """Resize, cut, normalise; ask `check_tokens` before anything large is made."""

    def max_image_bytes(self) -> int | None:
        """What an input's pictures take at most, where that is known before an image is seen."""
        return None

    def normalize_placeholders(self, text: str) -> str:
        """A prompt with images, each marked by one token."""
        return text.replace(self.spec.placeholder_token, self.spec.prompt_token) if self.spec.prompt_token else text

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        """A prompt with images as the model wants it around them; each of them is a single mark yet."""
        return token_ids

    def mrope_positions(
        self, token_ids: TokenIds, images: Sequence[ProcessedImage], embed_rows: Int64Array
    ) -> Int64Array | None:
        """[axes, tokens], where a position is several numbers; `rows` are the tokens that the tower fills."""
        return None

    def _is_relevant_option(self, name: str) -> bool:
        """Whether an option of the files matters; sizes are written by some that cut images in another way."""
        return name in self.SUPPORTED_OPTIONS or name not in SIZE_OPTIONS

    def require_token_id(self, token: str) -> int:
        found = self.token_to_id(token)
        if found is None:
            raise LoadError(f"the tokenizer has no token {token!r}, which this model's images need")
        return found

    def check_num_tokens(self, num_tokens: int, image: Image, param_path: str) -> None:
        if num_tokens > self.max_tokens:
            raise InputTooLong(
                f"{param_path}: an image of {image.width} x {image.height} pixels becomes {num_tokens} tokens, and "
                f"this model "
                f""
                f"reads {self.max_tokens} at most; give a smaller one, or lower {self.SIZE_LIMIT_OPTION} in "
                f"mm_processor_kwargs",
                param="input_tokens",
                value=num_tokens,
            )

    def compute_cache_key(self, image: Image, options: Mapping[str, Any]) -> bytes:
        """Of an image, and of the options that may differ from request to request."""
        changed = repr([(name, options.get(name)) for name in self.SUPPORTED_OPTIONS])
        digest = hashlib.blake2b(f"{image.size} {changed}".encode(), digest_size=16)
        rows = max(1, HASH_BAND_PIXELS // image.width)
        for top in range(
            0, image.height, rows
        ):  # a large image is not copied as a whole, and other threads get their turn
            band = image.crop((0, top, image.width, min(top + rows, image.height)))
            digest.update(band.tobytes())
        return digest.digest()

    def _check_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if unknown := [name for name in options if name not in self.SUPPORTED_OPTIONS]:
            known = ", ".join(self.SUPPORTED_OPTIONS) or "none"
            named = ", ".join(map(short_repr, unknown[:MAX_LISTED_OPTIONS])) + (
                ", ..." if len(unknown) > MAX_LISTED_OPTIONS else ""
            )
            raise BadRequest(
                f"mm_processor_kwargs has {named}, which this model's images do not have; there are: {known}",
                param="mm_processor_kwargs",
            )
        if wrong := validate_options(options):
            raise BadRequest(f"mm_processor_kwargs: {wrong}", param="mm_processor_kwargs")
        return {name: value for name, value in options.items() if value is not None}


def make_image_processor(
    spec: ImageSpec,
    files: ProcessorFiles,
    token_to_id: Callable[[str], int | None],
    max_tokens: int,
    options: Mapping[str, Any],
) -> ImageProcessor:
    module, name = IMAGE_PROCESSORS[spec.processor].split(":")
    kind: type[ImageProcessor] = getattr(import_module(f"cenote.inputs.images.{module}"), name)
    return kind(spec, files, token_to_id, max_tokens, options)


def repeat_token(token_id: int, count: int) -> tuple[TokenIds, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The tokens of a picture that are nothing but its rows, and that all of them are."""
    return np.full(count, token_id, dtype=np.int32), np.ones(count, dtype=bool)
