"""Decode images in data URIs: data:image/png;base64,..."""

from __future__ import annotations

import binascii

from cenote.errors import BadRequest
from cenote.inputs.media.memory_budget import BudgetLease

MEDIA_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
MAX_HEADER_CHARS = 256
DECODE_CHARS = 1024**2  # characters decoded per call, to release the GIL in between; a multiple of four
WHITESPACE = " \t\r\n\f"
EXPECTED_FORMAT = "expected data:image/png;base64,..."


def decode_data_uri(uri: str, max_bytes: int, lease: BudgetLease) -> bytes:
    """Return the bytes of the image; the size is checked before decoding."""
    comma = uri.find(",", 0, MAX_HEADER_CHARS)
    if comma < 0:
        raise BadRequest(f"the data URI has no comma within its first {MAX_HEADER_CHARS} characters; {EXPECTED_FORMAT}")
    kind, *parameters = (part.strip().lower() for part in uri[len("data:") : comma].split(";"))
    if "base64" not in parameters:
        raise BadRequest(f"the data URI is percent-encoded, but only base64 is supported; {EXPECTED_FORMAT}")
    if kind and kind not in (*MEDIA_TYPES, "image/jpg"):
        raise BadRequest(f"unsupported media type in the data URI; expected one of: {', '.join(MEDIA_TYPES)}")
    text = _strip_whitespace(uri[comma + 1 :])
    if not text:
        raise BadRequest(f"the data URI is empty, 0 bytes after the comma; {EXPECTED_FORMAT}")
    num_bytes = len(text) * 3 // 4
    if num_bytes > max_bytes + 2:  # up to two bytes are padding
        raise BadRequest(f"the image has about {num_bytes:,} bytes, the limit is {max_bytes:,}")
    lease.grow(num_bytes)
    return _decode_base64(text)


def _strip_whitespace(text: str) -> str:
    if not text.isascii() or not any(space in text for space in WHITESPACE):
        return text
    chunks = (text[start : start + DECODE_CHARS] for start in range(0, len(text), DECODE_CHARS))
    return b"".join(chunk.encode("ascii").translate(None, WHITESPACE.encode()) for chunk in chunks).decode("ascii")


def _decode_base64(text: str) -> bytes:
    text += "=" * (-len(text) % 4)  # many encoders omit the padding
    try:
        if "=" in text[:-2]:
            raise ValueError("padding in the middle")
        chunks = (text[start : start + DECODE_CHARS] for start in range(0, len(text), DECODE_CHARS))
        return b"".join(binascii.a2b_base64(chunk, strict_mode=True) for chunk in chunks)
    except ValueError:  # binascii.Error, or characters outside ASCII
        raise BadRequest(f"the data URI's {len(text):,} characters are not valid base64") from None
