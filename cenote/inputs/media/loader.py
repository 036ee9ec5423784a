"""Load images: check the source against the policy, read or fetch it, and decode it to RGB within memory limits."""

from __future__ import annotations

import os
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import PIL.Image

from cenote.errors import BadRequest
from cenote.inputs.media.arrays import from_array, is_array
from cenote.inputs.media.data_uri import decode_data_uri
from cenote.inputs.media.decoder_pool import DecoderPool
from cenote.inputs.media.fetch import Fetcher
from cenote.inputs.media.image_header import ImageHeader, read_header
from cenote.inputs.media.local_files import read_file, read_file_url
from cenote.inputs.media.memory_budget import BudgetLease, MemoryBudget
from cenote.inputs.media.pixels import convert_to_rgb, exif_transpose
from cenote.inputs.media.policy import MediaPolicy
from cenote.protocol.images import ImageSource

MAX_SIDE = 65_535  # maximum of JPEG and GIF; every row has its own overhead, however short
# peak of any format, in both processes together: progressive JPEG, animated WebP, EXIF rotation
PEAK_BYTES_PER_PIXEL = 12
MAX_FILES_IN_MEMORY = 4  # of the maximum size; more if they are smaller
MAX_SCHEME_CHARS = 64  # limits the search in a long text without a scheme
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
SUPPORTED_URLS = "expected data:image/png;base64,..., or http(s):// or file:// where the server allows it"


class MediaLoader:
    """Load images as a policy allows; thread-safe."""

    def __init__(self, policy: MediaPolicy) -> None:
        self.policy = policy
        self.fetcher = Fetcher(policy)
        self._init_resources()
        _loaders.add(self)

    def load(self, image: ImageSource) -> PIL.Image.Image:
        """Return the image in RGB, upright; BadRequest names the part. Blocks while the memory budget is exhausted."""
        try:
            return self._load(image.source)
        except BadRequest as error:
            raise BadRequest(f"{image.param_path}: {error.message}") from None

    def close(self) -> None:
        """Stop the decoder processes."""
        self._finalizer()

    def _init_resources(self) -> None:
        # called again after a fork, since threads of the parent may hold these locks
        self._file_budget = MemoryBudget(MAX_FILES_IN_MEMORY * self.policy.max_image_bytes)
        self._pixel_budget = MemoryBudget(self.policy.decode_budget_bytes)
        self._convert_lock = threading.Lock()
        self._header_lock = threading.Lock()
        self.decoder_pool = DecoderPool(self.policy.decode_budget_bytes)
        self._finalizer = weakref.finalize(self, self.decoder_pool.close)

    def _load(self, source: Any) -> PIL.Image.Image:
        if isinstance(source, bytes | bytearray | memoryview):
            return self._decode(bytes(source))
        if isinstance(source, str):
            with self._file_budget.lease() as lease:
                return self._decode(self._read_source(source, lease))
        if not self.policy.trust_caller:
            raise BadRequest(f"an image must be a string, got {type(source).__name__}; {SUPPORTED_URLS}")
        if isinstance(source, os.PathLike):
            with self._file_budget.lease() as lease:
                return self._decode(self._read_path(Path(source), lease))
        if isinstance(source, PIL.Image.Image):
            return self._convert_pil_image(source)
        if is_array(source):
            return self._convert_pil_image(from_array(source))
        raise BadRequest(
            f"an image must be a path, a URL, bytes, a PIL image or an array of uint8, got {type(source).__name__}"
        )

    def _read_source(self, text: str, lease: BudgetLease) -> bytes:
        match = _SCHEME.match(text, 0, MAX_SCHEME_CHARS)
        scheme = match[1].lower() if match else None
        if scheme == "data":
            return decode_data_uri(text, self.policy.max_image_bytes, lease)
        if scheme in ("http", "https"):
            return self.fetcher.fetch(text, lease)
        if scheme == "file":
            return read_file_url(text, self.policy.allowed_local_media_path, self.policy.max_image_bytes, lease)
        if self.policy.trust_caller and "://" not in text:
            return self._read_path(text, lease)
        raise BadRequest(f"unsupported image URL; {SUPPORTED_URLS}")

    def _read_path(self, path: str | Path, lease: BudgetLease) -> bytes:
        return read_file(path, self.policy.allowed_local_media_path, self.policy.max_image_bytes, lease)

    def _decode(self, content: bytes) -> PIL.Image.Image:
        if not content:
            raise BadRequest("the image is empty, 0 bytes")
        if len(content) > self.policy.max_image_bytes:
            raise BadRequest(f"the image has {len(content):,} bytes, the limit is {self.policy.max_image_bytes:,}")
        with self._header_lock:  # pure Python: more threads would starve the model's thread of the GIL
            header = read_header(content, self.policy.max_image_frames)
        num_bytes = self._check_header(header)
        with self._pixel_budget.lease() as lease:
            lease.grow(num_bytes)
            return self.decoder_pool.decode(content, header)

    def _convert_pil_image(self, image: PIL.Image.Image) -> PIL.Image.Image:
        """Convert a trusted PIL image, in this process."""
        num_bytes = self._check_header(ImageHeader(image.format or "", *image.size))
        with self._pixel_budget.lease() as lease:
            lease.grow(num_bytes)
            try:
                with self._convert_lock:  # a lazily opened file is not thread-safe
                    image.load()
                converted = convert_to_rgb(exif_transpose(image))
            except (BadRequest, MemoryError):
                raise
            except Exception as error:  # Pillow plugins raise exceptions of any type
                raise BadRequest(f"the PIL image of {_format_size(image.size)} cannot be read: {error}") from None
        return image.copy() if converted is image else converted  # the caller may modify its image later

    def _check_header(self, header: ImageHeader) -> int:
        """Return the memory needed to decode the image; raise BadRequest if it exceeds a limit."""
        size = header.width, header.height
        num_pixels = size[0] * size[1]
        if num_pixels == 0:
            raise BadRequest(f"the image has no pixels, {_format_size(size)}")
        if num_pixels > self.policy.max_image_pixels:
            raise BadRequest(
                f"the image has {_format_size(size)}, {num_pixels:,} in total; "
                f"the limit is {self.policy.max_image_pixels:,}"
            )
        if max(size) > MAX_SIDE:
            raise BadRequest(f"the image has {_format_size(size)}; the limit is {MAX_SIDE:,} per side")
        if header.num_frames > self.policy.max_image_frames:
            raise BadRequest(
                f"the image has {header.num_frames:,} frames or more; the limit is {self.policy.max_image_frames:,}"
            )
        num_bytes = num_pixels * PEAK_BYTES_PER_PIXEL
        if num_bytes > self._pixel_budget.num_bytes:
            raise BadRequest(
                f"the image has {_format_size(size)} and needs up to {num_bytes:,} bytes to be decoded; "
                f"the limit for all images together is {self._pixel_budget.num_bytes:,}"
            )
        return num_bytes


def _format_size(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,} pixels"


_loaders: weakref.WeakSet[MediaLoader] = weakref.WeakSet()


def _reinit_after_fork() -> None:
    for loader in _loaders:
        loader._finalizer.detach()
        loader.decoder_pool.detach()
        loader._init_resources()


os.register_at_fork(after_in_child=_reinit_after_fork)
