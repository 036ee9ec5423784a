"""What may be fetched, opened and decoded: everything that is not allowed here is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPolicy:
    allowed_local_media_path: str | None = None  # the folder that file:// URLs may point into
    allowed_media_domains: tuple[str, ...] = ()  # hosts that images may be fetched from
    allow_any_media_domain: bool = False  # any host on the public internet
    max_image_bytes: int = 32 * 1024**2
    fetch_timeout_s: float = 10.0  # from looking up the host to the last byte
    max_image_pixels: int = 40_000_000
    max_image_frames: int = 64
    decode_budget_bytes: int = 512 * 1024**2  # of all images that are decoded at the same time
    trust_caller: bool = False  # offline: paths, PIL images and arrays are the program's own
