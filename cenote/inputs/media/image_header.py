"""Read format, size and number of frames from image headers, without decoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from cenote.errors import BadRequest

SUPPORTED_FORMATS = "supported: PNG, JPEG, WebP and GIF"
MAX_CHUNKS = 10_000  # before the pixel data; ordinary files have a few dozen
MAX_BLOCKS = 300_000  # GIF blocks of 255 bytes: twice a file of 32 MiB
_OTHER_SIGNATURES = {
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"BM": "BMP",
    b"8BPS": "Photoshop",
    b"%!PS": "EPS",
    b"%PDF": "PDF",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"<svg": "SVG",
    b"<!DOC": "HTML",
    b"<html": "HTML",
}
_NON_FRAME_MARKERS = (0xC4, 0xC8, 0xCC)  # JPEG markers in the range of SOF that do not start a frame
_STANDALONE_MARKERS = (0x01, *range(0xD0, 0xD9))  # JPEG markers without a length


@dataclass(frozen=True, slots=True)
class ImageHeader:
    format: str  # Pillow's name
    width: int
    height: int
    num_frames: int = 1  # counted up to the limit plus one


def read_header(content: bytes, max_frames: int) -> ImageHeader:
    """Parse the header of an image file; counting frames stops above `max_frames`."""
    try:
        if content.startswith(b"\x89PNG\r\n\x1a\n"):
            header = _read_png(content)
        elif content.startswith(b"\xff\xd8\xff"):
            header = _read_jpeg(content)
        elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            header = _read_webp(content, max_frames)
        elif content[:6] in (b"GIF87a", b"GIF89a"):
            header = _read_gif(content, max_frames)
        else:
            raise BadRequest(f"the {len(content):,} bytes are {_describe_format(content)}; {SUPPORTED_FORMATS}")
    except (IndexError, ValueError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"the image header is corrupt or truncated, in a file of {len(content):,} bytes") from None
    return header


def _describe_format(content: bytes) -> str:
    if content[4:8] == b"ftyp":
        return "an AVIF or HEIC image, or a video"
    name = next((name for signature, name in _OTHER_SIGNATURES.items() if content.startswith(signature)), None)
    return f"of the unsupported format {name}" if name else "not an image of a known format"


def _read_png(content: bytes) -> ImageHeader:
    if content[12:16] != b"IHDR":
        raise ValueError
    num_frames, offset = 1, 8
    for _ in range(MAX_CHUNKS):
        length, kind = _read_uint_be(content, offset, 4), content[offset + 4 : offset + 8]
        if kind == b"acTL":
            num_frames = _read_uint_be(content, offset + 8, 4)
        if kind in (b"IDAT", b"IEND"):
            return ImageHeader("PNG", _read_uint_be(content, 16, 4), _read_uint_be(content, 20, 4), num_frames)
        offset += 12 + length
    raise ValueError


def _read_jpeg(content: bytes) -> ImageHeader:
    size: tuple[int, int] | None = None
    offset = 2
    for _ in range(MAX_CHUNKS):
        offset = content.index(b"\xff", offset) + 1
        marker = content[offset]
        if marker == 0xDA:  # start of scan: pixel data follows
            if size is None:
                raise ValueError
            return ImageHeader("JPEG", *size)
        if marker in (0x00, 0xFF, *_STANDALONE_MARKERS):
            offset += marker != 0xFF  # 0xFF: fill byte, any number can precede a marker
            continue
        if 0xC0 <= marker <= 0xCF and marker not in _NON_FRAME_MARKERS:
            if size is not None:
                raise ValueError
            size = _read_uint_be(content, offset + 6, 2), _read_uint_be(content, offset + 4, 2)
        offset += 1 + _read_uint_be(content, offset + 1, 2)
    raise ValueError


def _read_webp(content: bytes, max_frames: int) -> ImageHeader:
    kind = content[12:16]
    if kind == b"VP8 " and content[23:26] == b"\x9d\x01\x2a":
        return ImageHeader("WEBP", _read_uint_le(content, 26, 2) & 0x3FFF, _read_uint_le(content, 28, 2) & 0x3FFF)
    if kind == b"VP8L" and content[20] == 0x2F:
        bits = _read_uint_le(content, 21, 4)
        return ImageHeader("WEBP", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise ValueError
    num_frames, offset = 0, 12
    for _ in range(MAX_CHUNKS):
        if offset + 8 > len(content) or num_frames > max_frames:
            return ImageHeader(
                "WEBP", _read_uint_le(content, 24, 3) + 1, _read_uint_le(content, 27, 3) + 1, max(num_frames, 1)
            )
        num_frames += content[offset : offset + 4] == b"ANMF"
        length = _read_uint_le(content, offset + 4, 4)
        offset += 8 + length + length % 2
    raise ValueError


def _read_gif(content: bytes, max_frames: int) -> ImageHeader:
    width, height = _read_uint_le(content, 6, 2), _read_uint_le(content, 8, 2)
    frames = _iter_gif_frames(content)
    left, top, frame_width, frame_height = next(frames, (0, 0, 0, 0))
    if not frame_width:
        raise ValueError
    num_frames = 1
    with suppress(IndexError, ValueError):  # only the first frame is decoded: later ones may be corrupt
        while num_frames <= max_frames and next(frames, None) is not None:
            num_frames += 1
    return ImageHeader("GIF", max(width, left + frame_width), max(height, top + frame_height), num_frames)


def _iter_gif_frames(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield left, top, width and height of every frame."""
    num_blocks = 0
    offset = 13 + _color_table_bytes(content[10])
    while content[offset] != 0x3B:
        num_blocks += 1
        if num_blocks > MAX_BLOCKS:
            raise ValueError
        if content[offset] == 0x2C:
            left, top, width, height = (_read_uint_le(content, offset + skip, 2) for skip in (1, 3, 5, 7))
            yield left, top, width, height
            offset += 11 + _color_table_bytes(content[offset + 9])
        elif content[offset] == 0x21:
            offset += 2
        else:
            offset += 1  # arbitrary bytes can be between blocks
            continue
        while length := content[offset]:
            offset += 1 + length
            num_blocks += 1
            if num_blocks > MAX_BLOCKS:
                raise ValueError
        offset += 1


def _color_table_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _read_uint_be(content: bytes, offset: int, length: int) -> int:
    return int.from_bytes(_read_exact(content, offset, length), "big")


def _read_uint_le(content: bytes, offset: int, length: int) -> int:
    return int.from_bytes(_read_exact(content, offset, length), "little")


def _read_exact(content: bytes, offset: int, length: int) -> bytes:
    part = content[offset : offset + length]
    if len(part) < length:
        raise IndexError
    return part
