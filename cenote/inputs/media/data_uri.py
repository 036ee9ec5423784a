"""Images inside their own URL: data:image/png;base64,..."""

from __future__ import annotations

import binascii

from cenote.errors import BadRequest
from cenote.inputs.media.memory_budget import Share

TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
LONGEST_HEAD = 256
PIECE = 1024**2  # characters decoded at a time, so that other threads get their turn; a multiple of four
SPACES = " \t\r\n\f"
FORM = "data:image/png;base64,... is read"


def read_data_uri(uri: str, max_bytes: int, share: Share) -> bytes:
    """The bytes of the image; its size is checked before anything is decoded."""
    comma = uri.find(",", 0, LONGEST_HEAD)
    if comma < 0:
        raise BadRequest(f"the data URI has no comma within its first {LONGEST_HEAD} characters; {FORM}")
    kind, *parameters = (part.strip().lower() for part in uri[len("data:") : comma].split(";"))
    if "base64" not in parameters:
        raise BadRequest(f"the data URI is percent-encoded, and only base64 is read: {FORM}")
    if kind and kind not in (*TYPES, "image/jpg"):
        raise BadRequest(f"the data URI is of a type that is not read; there are: {', '.join(TYPES)}")
    text = _without_spaces(uri[comma + 1 :])
    if not text:
        raise BadRequest(f"the data URI is empty, 0 bytes after its comma; {FORM}")
    num_bytes = len(text) * 3 // 4
    if num_bytes > max_bytes + 2:  # up to two of them are padding
        raise BadRequest(f"the image has about {num_bytes:,} bytes, at most {max_bytes:,} are read")
    share.grow(num_bytes)
    return _decoded(text)


def _without_spaces(text: str) -> str:
    if not text.isascii() or not any(space in text for space in SPACES):
        return text
    pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
    return b"".join(piece.encode("ascii").translate(None, SPACES.encode()) for piece in pieces).decode("ascii")


def _decoded(text: str) -> bytes:
    text += "=" * (-len(text) % 4)  # many writers leave the padding out
    try:
        if "=" in text[:-2]:
            raise ValueError("padding in the middle")
        pieces = (text[start : start + PIECE] for start in range(0, len(text), PIECE))
        return b"".join(binascii.a2b_base64(piece, strict_mode=True) for piece in pieces)
    except ValueError:  # binascii.Error is one, and so are characters outside of ASCII
        raise BadRequest(f"the data URI's {len(text):,} characters are not valid base64") from None
