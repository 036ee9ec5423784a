"""Convert decoded images to upright RGB."""

from __future__ import annotations

from PIL import Image

from cenote.errors import BadRequest

_ORIENTATION = 0x0112  # EXIF tag
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
    """Apply the EXIF orientation."""
    try:
        transpose = _TRANSPOSES.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # invalid EXIF data: keep the orientation of the pixels
        return image
    return image if transpose is None else image.transpose(transpose)


def convert_to_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8-bit RGB; transparent pixels are blended with white."""
    if image.mode.startswith("I;16"):
        high_bytes = image.tobytes()[0 if image.mode == "I;16B" else 1 :: 2]
        return Image.frombytes("L", image.size, high_bytes).convert("RGB")
    if image.mode in ("I", "F"):
        raise BadRequest(f"an image of mode {image.mode} has no defined value range; convert it to mode L or RGB")
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    rgba = image.convert("RGBA")
    background = Image.new("RGB", image.size, (255, 255, 255))
    background.paste(rgba, mask=rgba.getchannel("A"))
    return background
