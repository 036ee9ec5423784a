"""Any decoded image as upright RGB."""

from __future__ import annotations

from PIL import Image

from cenote.errors import BadRequest

_ORIENTATION = 0x0112  # EXIF's number for it
_TRANSPOSES = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def exif_transpose(image: Image.Image) -> Image.Image:
    """The image as its camera was held."""
    try:
        turn = _TRANSPOSES.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever the EXIF reader stumbles over, the pixels are not the worse for it
        return image
    return image if turn is None else image.transpose(turn)


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Eight bits per colour; what is transparent shows white behind it."""
    if image.mode.startswith("I;16"):
        high_bytes = image.tobytes()[0 if image.mode == "I;16B" else 1 :: 2]
        return Image.frombytes("L", image.size, high_bytes).convert("RGB")
    if image.mode in ("I", "F"):
        raise BadRequest(f"an image of mode {image.mode} has no known brightest value; convert it to mode L or RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    coloured = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(coloured, mask=coloured.getchannel("A"))
    return white
