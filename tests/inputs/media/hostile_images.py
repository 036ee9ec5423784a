"""Hostile image files: decompression bombs, false headers, corrupt files and unsupported formats."""

from __future__ import annotations

import io
import os
import struct
import zlib
from functools import cache
from typing import Any

import PIL.features
import PIL.Image

SIDE = 6300  # 39.69 million pixels, just below the limit


def saved(kind: str, size: tuple[int, int] = (16, 16), **options: Any) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("RGB", size, (200, 30, 90)).save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, *before: bytes, rows: bytes | None = None, after: bytes = b"", **head: int) -> bytes:
    depth, colour, interlace = head.get("depth", 8), head.get("colour", 0), head.get("interlace", 0)
    packed = zlib.compress(bytes((width + 1) * height) if rows is None else rows, 1)
    start = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace))
    return b"\x89PNG\r\n\x1a\n" + start + b"".join(before) + chunk(b"IDAT", packed) + after + chunk(b"IEND", b"")


@cache
def zeros(num_bytes: int) -> bytes:
    return zlib.compress(bytes(num_bytes), 1)


def jpeg(width: int, height: int, **options: Any) -> bytes:
    """Return a small JPEG whose header declares another size."""
    content = bytearray(saved("JPEG", **options))
    offset = next(offset for marker in (b"\xff\xc0", b"\xff\xc2") if (offset := content.find(marker)) > 0)
    content[offset + 5 : offset + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def jpeg_with(segment: bytes, marker: int = 0xE1) -> bytes:
    content = saved("JPEG")
    return content[:2] + bytes((0xFF, marker)) + struct.pack(">H", len(segment) + 2) + segment + content[2:]


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(kind + struct.pack("<I", len(it)) + it + b"\0" * (len(it) % 2) for kind, it in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp(width: int, height: int, num_frames: int = 1, left: int = 0) -> bytes:
    """Return an animation with small frames on a canvas of any size."""

    def uint24(number: int) -> bytes:
        return struct.pack("<I", number)[:3]

    image_data = saved("WEBP", lossless=True)[12:]
    frame_header = uint24(left) + uint24(0) + uint24(15) + uint24(15) + uint24(100) + b"\0"
    frames = [(b"ANMF", frame_header + image_data)] * num_frames
    canvas = b"\x02\0\0\0" + uint24(width - 1) + uint24(height - 1)
    return riff((b"VP8X", canvas), (b"ANIM", bytes(6)), *frames)


def gif(width: int, height: int, num_frames: int = 1, frame: tuple[int, int, int, int] = (0, 0, 1, 1)) -> bytes:
    start = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return start + (b"," + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x44\x01\0") * num_frames + b";"


def hostile_images() -> dict[str, bytes]:
    """Return hostile files by name; those that are only large, or unusual but valid, may decode."""
    good_png, good_jpeg, good_webp, good_gif = (saved(kind) for kind in ("PNG", "JPEG", "WEBP", "GIF"))
    exif_circle = b"Exif\0\0II*\0\x08\0\0\0" + b"\x01\0\x69\x87\x04\0\x01\0\0\0\x08\0\0\0" + b"\x08\0\0\0"
    exif_long = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\x01\x12\0\x03\xff\xff\xff\xff\xff\xff\xff\xff" * 500
    tiff_bomb = b"II*\0\x08\0\0\0" + struct.pack("<H", 2) + struct.pack("<HHII", 256, 4, 1, 2**31) * 2
    return {
        "png at the limit": png(SIDE, SIDE),
        "png huge": png(60_000, 60_000, rows=b"\0" * 1000),
        "png hugest": png(2**31 - 1, 2**31 - 1, rows=b"\0" * 1000),
        "png above the limit": png(2**32 - 1, 1, rows=b"\0" * 1000),
        "png without pixels": png(0, 10, rows=b""),
        "png one column": png(1, 65535),
        "png too long": png(70_000, 1),
        "png with too many rows": png(4, 4, rows=bytes(50_000_000)),
        "png with too few rows": png(1000, 1000, rows=bytes(500)),
        "png interlaced and cut": png(3000, 3000, rows=bytes(900), interlace=1),
        "png text bomb": png(4, 4, chunk(b"zTXt", b"a\0\0" + zeros(50_000_000))),
        "png text bomb at the end": png(4, 4, after=chunk(b"zTXt", b"a\0\0" + zeros(50_000_000))),
        "png many text bombs": png(4, 4, *[chunk(b"zTXt", b"a\0\0" + zeros(1_000_000))] * 200),
        "png international text bomb": png(4, 4, chunk(b"iTXt", b"a\0\1\0\0\0" + zeros(50_000_000))),
        "png profile bomb": png(4, 4, chunk(b"iCCP", b"a\0\0" + zeros(50_000_000))),
        "png without a palette": png(4, 4, colour=3),
        "png of no colour type": png(4, 4, colour=5),
        "png with many frames": png(4, 4, chunk(b"acTL", struct.pack(">II", 100_000, 0))),
        "png with a wrong sum": good_png[:30] + b"xx" + good_png[32:],
        "png with odd exif": png(4, 4, chunk(b"eXIf", exif_long[6:])),
        "png with a negative chunk": good_png[:33] + b"\xff\xff\xff\xff" + good_png[37:],
        "png cut in its head": good_png[:20],
        "png cut": good_png[:-30],
        "png signature": good_png[:8],
        "jpeg progressive at the limit, cut": jpeg(SIDE, SIDE, progressive=True, subsampling=0),
        "jpeg huge": jpeg(65535, 65535),
        "jpeg one column": jpeg(1, 65535),
        "jpeg without height": jpeg(100, 0),
        "jpeg exif in a circle": jpeg_with(exif_circle),
        "jpeg exif without end": jpeg_with(exif_long),
        "jpeg exif of nothing": jpeg_with(b"Exif\0\0"),
        "jpeg odd picture index": jpeg_with(b"MPF\0II*\0\x08\0\0\0\xff\xff" + b"\xff" * 60, 0xE2),
        "jpeg two sizes": good_jpeg.replace(b"\xff\xc0", good_jpeg[good_jpeg.find(b"\xff\xc0") :][:19] + b"\xff\xc0"),
        "jpeg of markers": b"\xff\xd8" + b"\xff\xe0\0\2" * 400_000,
        "jpeg of nothing": b"\xff\xd8\xff" + b"\xff" * 100_000,
        "jpeg cut": good_jpeg[:-12],
        "jpeg cut in its head": good_jpeg[:100],
        "jpeg turned into noise": good_jpeg[:-12] + os.urandom(20_000),
        "webp canvas at the limit": webp(SIDE, SIDE),
        "webp canvas huge": webp(2**24, 2**24),
        "webp with many frames": webp(16, 16, 5000),
        "webp frame outside": webp(16, 16, left=5000),
        "webp lossy huge": good_webp[:26] + struct.pack("<HH", 16383, 16383) + good_webp[30:],
        "webp lossless huge": riff((b"VP8L", b"\x2f\xff\xff\xff\x0f" + bytes(100))),
        "webp lies about its length": good_webp[:4] + b"\xff\xff\xff\xff" + good_webp[8:],
        "webp of blocks": riff((b"VP8X", bytes(10)), *[(b"JUNK", b"")] * 400_000),
        "webp cut": good_webp[: len(good_webp) // 2],
        "webp head": good_webp[:16],
        "gif at the limit": gif(SIDE, SIDE),
        "gif huge": gif(65535, 65535),
        "gif with many frames": gif(4, 4, 100_000),
        "gif frame outside": gif(4, 4, frame=(60_000, 60_000, 5000, 5000)),
        "gif without frames": gif(4, 4, 0),
        "gif of tiny blocks": gif(4, 4, 0)[:-1] + b"!\xfe" + b"\x01a" * 1_000_000 + b"\0;",
        "gif noise": gif(400, 400, frame=(0, 0, 400, 400))[:-7] + b"\xff" + os.urandom(255) + b"\0;",
        "gif cut": good_gif[:40],
        "tiff": saved("TIFF"),
        "tiff bomb": tiff_bomb,
        "bmp": saved("BMP"),
        "ico": saved("ICO"),
        "jpeg 2000": saved("JPEG2000") if PIL.features.check("jpg_2000") else b"\0\0\0\x0cjP  \r\n\x87\n",
        "photoshop": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 30_000, 30_000, 8, 3) + bytes(100),
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999 9999\n%%EndComments\n(/etc/passwd) run\n",
        "pdf": b"%PDF-1.7\n",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "avif": b"\0\0\0\x1cftypavif" + bytes(1000),
        "mp4": b"\0\0\0\x1cftypisom" + bytes(1000),
        "html": b"<html><img src=x></html>",
        "noise": os.urandom(5000),
        "one byte": b"\x89",
        "nothing": b"",
    }  # fmt: skip
