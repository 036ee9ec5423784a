"""Base class of image processors, and the table of those available."""

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
from cenote.models.image_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import ProcessedImage
from cenote.utils.text import short_repr

if TYPE_CHECKING:
    from PIL.Image import Image

HASH_BAND_PIXELS = 1 << 16  # fits in a core's cache, and in memory that the heap has already
MAX_LISTED_OPTIONS = 8  # in an error message
# the name in an ImageSpec -> module:class, imported on use
IMAGE_PROCESSORS = {
    "qwen_vl": "qwen_vl:QwenVLImageProcessor",
    "resized": "fixed_size:FixedSizeImageProcessor",
    "jina_clip": "jina_clip:JinaCLIPImageProcessor",
    "naflex": "naflex:NaFlexImageProcessor",
    "paligemma": "paligemma:PaliGemmaImageProcessor",
    "idefics3": "idefics3:Idefics3ImageProcessor",
    "nemotron": "nemotron:NemotronImageProcessor",
    "llava_next": "llava_next:LlavaNextImageProcessor",
    "phi3v": "phi3v:Phi3VImageProcessor",
}


class ImageProcessor(ABC):
    """Preprocess the images of one model.

    Options of the checkpoint files can be overridden by the server and by requests, for names in SUPPORTED_OPTIONS.
    """

    SUPPORTED_OPTIONS: ClassVar[tuple[str, ...]] = ()
    SIZE_LIMIT_OPTION: ClassVar[str] = "max_pixels"  # the option that reduces the size of images, named in errors
    NUM_ADDED_TOKENS: ClassVar[int] = 0  # most tokens that `arrange_prompt` adds

    def __init__(
        self,
        spec: ImageSpec,
        files: ProcessorFiles,
        token_to_id: Callable[[str], int | None],
        max_tokens: int,
        options: Mapping[str, Any],
    ) -> None:
        """`token_to_id` looks up a token in the vocabulary; `max_tokens` is the model length."""
        self.spec = spec
        self.files = replace(files, image_processor=self.normalize_config(files.image_processor))
        self.token_to_id = token_to_id
        self.max_tokens = max_tokens
        if error := validate_options(
            {name: value for name, value in self.files.image_processor.items() if self._is_relevant_option(name)}
        ):
            raise LoadError(f"preprocessor_config.json, or image_processor in processor_config.json: {error}")
        self.options = self._check_options(options)  # set by the server
        self.resolve_token_ids()

    def normalize_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert the options of the checkpoint files to the names of this processor."""
        return config

    def resolve_token_ids(self) -> None:
        """Look up the tokens that every prompt needs."""
        placeholder = self.spec.prompt_token or self.spec.placeholder_token
        self.placeholder_id = self.require_token_id(placeholder) if self.spec.placeholder_token else None

    def preprocess(self, image: Image, overrides: Mapping[str, Any], param_path: str) -> ProcessedImage:
        """Return patches and tokens of an image. `overrides`: options of the request; `param_path`: name in errors."""
        merged = {**self.files.image_processor, **self.options, **self._check_options(overrides)}
        options = {name: value for name, value in merged.items() if value is not None}
        try:
            return self._preprocess(image, options, param_path)
        except BadRequest as error:
            if param_path not in error.message:
                error.message = f"{param_path}: {error.message}"
            raise
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            with_options = f" with mm_processor_kwargs={short_repr(dict(overrides))}" if overrides else ""
            raise BadRequest(
                f"{param_path}: an image of {image.width} x {image.height} pixels cannot be processed{with_options}: "
                f"{error}",
                param="mm_processor_kwargs" if overrides else param_path,
            ) from error

    @abstractmethod
    def _preprocess(self, image: Image, options: Mapping[str, Any], param_path: str) -> ProcessedImage:
        """Resize, crop and split into patches; call `check_num_tokens` before allocating anything large."""

    def max_image_bytes(self) -> int | None:
        """Upper bound on the bytes of an input's processed images; None: it depends on the images."""
        return None

    def normalize_placeholders(self, text: str) -> str:
        """Rewrite the placeholders of a prompt so that each is one token of the vocabulary."""
        return text.replace(self.spec.placeholder_token, self.spec.prompt_token) if self.spec.prompt_token else text

    def arrange_prompt(self, token_ids: TokenIds) -> TokenIds:
        """Rearrange the text around images as the model expects; every image is still one placeholder token."""
        return token_ids

    def mrope_positions(
        self, token_ids: TokenIds, images: Sequence[ProcessedImage], embed_rows: Int64Array
    ) -> Int64Array | None:
        """Return M-RoPE positions [axes, tokens], None for other models; `embed_rows`: indices of image tokens."""
        return None

    def _is_relevant_option(self, name: str) -> bool:
        """Whether to validate an option of the files; some have size options that their processor does not use."""
        return name in self.SUPPORTED_OPTIONS or name not in SIZE_OPTIONS

    def require_token_id(self, token: str) -> int:
        token_id = self.token_to_id(token)
        if token_id is None:
            raise LoadError(f"the tokenizer has no token {token!r}, which this model needs for images")
        return token_id

    def check_num_tokens(self, num_tokens: int, image: Image, param_path: str) -> None:
        if num_tokens > self.max_tokens:
            raise InputTooLong(
                f"{param_path}: an image of {image.width} x {image.height} pixels becomes {num_tokens} tokens, but "
                f"this model reads at most {self.max_tokens}; send a smaller one, or lower {self.SIZE_LIMIT_OPTION} "
                "in mm_processor_kwargs",
                param="input_tokens",
                value=num_tokens,
            )

    def compute_cache_key(self, image: Image, options: Mapping[str, Any]) -> bytes:
        """Hash an image and the options that can differ between requests."""
        option_values = repr([(name, options.get(name)) for name in self.SUPPORTED_OPTIONS])
        digest = hashlib.blake2b(f"{image.size} {option_values}".encode(), digest_size=16)
        rows = max(1, HASH_BAND_PIXELS // image.width)
        # in bands: no copy of the whole of a large image, and other threads can run in between
        for top in range(0, image.height, rows):
            band = image.crop((0, top, image.width, min(top + rows, image.height)))
            digest.update(band.tobytes())
        return digest.digest()

    def _check_options(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if unknown := [name for name in options if name not in self.SUPPORTED_OPTIONS]:
            supported = ", ".join(self.SUPPORTED_OPTIONS) or "none"
            listed = ", ".join(map(short_repr, unknown[:MAX_LISTED_OPTIONS])) + (
                ", ..." if len(unknown) > MAX_LISTED_OPTIONS else ""
            )
            raise BadRequest(
                f"mm_processor_kwargs has {listed}, which this model does not support; supported: {supported}",
                param="mm_processor_kwargs",
            )
        if error := validate_options(options):
            raise BadRequest(f"mm_processor_kwargs: {error}", param="mm_processor_kwargs")
        return {name: value for name, value in options.items() if value is not None}


def make_image_processor(
    spec: ImageSpec,
    files: ProcessorFiles,
    token_to_id: Callable[[str], int | None],
    max_tokens: int,
    options: Mapping[str, Any],
) -> ImageProcessor:
    module, name = IMAGE_PROCESSORS[spec.processor].split(":")
    processor_class: type[ImageProcessor] = getattr(import_module(f"cenote.inputs.images.{module}"), name)
    return processor_class(spec, files, token_to_id, max_tokens, options)


def repeat_token(token_id: int, count: int) -> tuple[TokenIds, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Return `count` times the same token, and the mask of those that get embeddings: all of them."""
    return np.full(count, token_id, dtype=np.int32), np.ones(count, dtype=bool)
