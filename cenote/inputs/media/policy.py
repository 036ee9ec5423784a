"""Policy for loading images: allowed sources and resource limits; everything else is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPolicy:
    allowed_local_media_path: str | None = None  # directory that file:// URLs may refer to; None: disabled
    allowed_media_domains: tuple[str, ...] = ()  # hosts to fetch images from
    allow_any_media_domain: bool = False  # any host with public addresses
    max_image_bytes: int = 32 * 1024**2
    fetch_timeout_s: float = 10.0  # from DNS lookup to the last byte
    max_image_pixels: int = 40_000_000
    max_image_frames: int = 64
    decode_budget_bytes: int = 512 * 1024**2  # for all images being decoded
    trust_caller: bool = False  # offline use: also accept paths, PIL images and arrays

    @property
    def fetches_any_url(self) -> bool:
        """Offline use without media options: the caller owns the machine and chooses the URLs."""
        return self.trust_caller and not self.allowed_media_domains and not self.allow_any_media_domain
