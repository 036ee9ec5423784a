"""Images of every format, mode and orientation are decoded to upright RGB."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from PIL import ImageOps

from cenote.errors import BadRequest
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import PARAM_PATH, encode_image, make_image_source, noise


def pixels(image: PIL.Image.Image) -> Any:
    assert image.mode == "RGB"
    return np.asarray(image)


def decode_with_pillow(file: bytes) -> Any:
    return np.asarray(PIL.Image.open(io.BytesIO(file)).convert("RGB"))


OPAQUE = {
    "PNG": ("RGB", "PNG", {}),
    "PNG grey": ("L", "PNG", {}),
    "JPEG": ("RGB", "JPEG", {}),
    "JPEG grey": ("L", "JPEG", {}),
    "JPEG CMYK": ("CMYK", "JPEG", {}),
    "JPEG progressive": ("RGB", "JPEG", {"progressive": True}),
    "WebP": ("RGB", "WEBP", {}),
    "WebP lossless": ("RGB", "WEBP", {"lossless": True}),
    "GIF": ("L", "GIF", {}),
}


@pytest.mark.parametrize("mode, image_format, options", OPAQUE.values(), ids=OPAQUE)
def test_a_file_is_decoded_as_by_pillow(
    mode: str, image_format: str, options: dict[str, Any], online: MediaLoader
) -> None:
    file = encode_image(noise(40, 30, mode), image_format, **options)

    assert np.array_equal(pixels(online.load(make_image_source(file))), decode_with_pillow(file))


def test_an_image_of_several_transfer_tiles_is_reassembled(online: MediaLoader) -> None:
    file = encode_image(noise(1500, 1100), compress_level=0)

    assert np.array_equal(pixels(online.load(make_image_source(file))), decode_with_pillow(file))


@pytest.mark.parametrize("mode, kind", [("RGBA", "PNG"), ("LA", "PNG"), ("RGBA", "WEBP")])
def test_transparent_pixels_become_white(mode: str, kind: str, online: MediaLoader) -> None:
    image = noise(16, 16, mode)
    clear = PIL.Image.new("L", (8, 16), 0)
    image.putalpha(PIL.Image.new("L", image.size, 255))
    alpha = image.getchannel("A")
    alpha.paste(clear, (0, 0))
    image.putalpha(alpha)

    found = pixels(
        online.load(make_image_source(encode_image(image, kind, **({"lossless": True} if kind == "WEBP" else {}))))
    )

    assert (found[:, :8] == 255).all()
    assert np.array_equal(found[:, 8:], np.asarray(image.convert("RGB"))[:, 8:])


def test_half_transparent_pixels_are_blended_with_white(online: MediaLoader) -> None:
    image = PIL.Image.new("RGBA", (2, 2), (100, 0, 200, 128))

    assert pixels(online.load(make_image_source(encode_image(image))))[0, 0].tolist() == [177, 127, 227]


@pytest.mark.parametrize("kind", ["PNG", "GIF"])
def test_a_palette_may_have_a_transparent_colour(kind: str, online: MediaLoader) -> None:
    image = PIL.Image.new("P", (4, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    for place in range(3):
        image.putpixel((place, 0), place)

    found = pixels(online.load(make_image_source(encode_image(image, kind, transparency=1))))

    assert found[0, :3].tolist() == [[255, 0, 0], [255, 255, 255], [0, 0, 255]]


def test_16_bit_images_keep_the_high_byte(online: MediaLoader, offline: MediaLoader) -> None:
    values = np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)
    image = PIL.Image.fromarray(values)

    for found in (online.load(make_image_source(encode_image(image))), offline.load(make_image_source(image))):
        assert pixels(found)[0, :, 0].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_applied(kind: str, orientation: int, online: MediaLoader) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    file = encode_image(noise(24, 16), kind, exif=exif)

    expected = ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(file)))
    assert np.array_equal(pixels(online.load(make_image_source(file))), np.asarray(expected))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_the_first_frame_of_an_animation_is_used(kind: str, online: MediaLoader) -> None:
    red, blue = (PIL.Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 0, 255)))
    options = {"lossless": True} if kind == "WEBP" else {}
    file = encode_image(red, kind, save_all=True, append_images=[blue] * 3, **options)

    assert (pixels(online.load(make_image_source(file))) == (255, 0, 0)).all()


def test_the_first_image_of_a_multi_picture_jpeg_is_used(online: MediaLoader) -> None:
    file = encode_image(noise(16, 16), "MPO", save_all=True, append_images=[PIL.Image.new("RGB", (16, 16))])
    assert PIL.Image.open(io.BytesIO(file)).format == "MPO"

    assert np.array_equal(pixels(online.load(make_image_source(file))), decode_with_pillow(file))


@pytest.mark.parametrize("size", [(1, 1), (1, 65535), (65535, 1), (3000, 1)], ids=str)
def test_extreme_sizes_are_decoded(size: tuple[int, int], online: MediaLoader) -> None:
    image = PIL.Image.new("RGB", size, (1, 2, 3))

    assert online.load(make_image_source(encode_image(image))).size == size


LIMITS: dict[str, tuple[dict[str, int], Any, str]] = {
    "pixels": ({"max_image_pixels": 100}, noise(20, 10), "20 x 10 pixels, 200 in total; the limit is 100"),
    "budget": (
        {"decode_budget_bytes": 2399},
        noise(20, 10),
        "up to 2,400 bytes to be decoded; the limit for all images together",
    ),
    "bytes": ({"max_image_bytes": 100}, noise(20, 10), "bytes, the limit is 100"),
    "side": ({}, PIL.Image.new("L", (65536, 1)), "65,536 x 1 pixels; the limit is 65,535 per side"),
}


@pytest.mark.parametrize("limits, image, message", LIMITS.values(), ids=LIMITS)
def test_exceeding_a_limit_is_refused_with_the_numbers(
    limits: dict[str, int], image: PIL.Image.Image, message: str
) -> None:
    loader = MediaLoader(MediaPolicy(**limits))  # type: ignore[arg-type]

    with pytest.raises(BadRequest) as caught:
        loader.load(make_image_source(encode_image(image)))

    assert caught.value.message.startswith(f"{PARAM_PATH}: ") and message in caught.value.message


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_frames_are_counted(kind: str) -> None:
    frames = [PIL.Image.new("L", (4, 4), place * 40).convert("RGB") for place in range(6)]
    file = encode_image(frames[0], kind, save_all=True, append_images=frames[1:])

    for max_frames, is_allowed in ((6, True), (5, False)):
        loader = MediaLoader(MediaPolicy(max_image_frames=max_frames))
        if is_allowed:
            assert loader.load(make_image_source(file)).size == (4, 4)
        else:
            with pytest.raises(BadRequest, match="6 frames or more; the limit is 5"):
                loader.load(make_image_source(file))
        loader.close()


ARRAYS = {
    "[h, w, 3]": lambda array: array,
    "torch": torch.from_numpy,
    "[3, h, w]": lambda array: array.transpose(2, 0, 1),
    "torch [3, h, w]": lambda array: torch.from_numpy(array).permute(2, 0, 1),
    "not contiguous": lambda array: np.repeat(array, 2, axis=0)[::2],
    "PIL": PIL.Image.fromarray,
    "bytes": lambda array: encode_image(PIL.Image.fromarray(array)),
    "bytearray": lambda array: bytearray(encode_image(PIL.Image.fromarray(array))),
    "a lazy file": lambda array: PIL.Image.open(io.BytesIO(encode_image(PIL.Image.fromarray(array), "TIFF"))),
}


@pytest.mark.parametrize("convert", ARRAYS.values(), ids=ARRAYS)
def test_an_offline_caller_may_pass_images_in_many_forms(convert: Any, offline: MediaLoader) -> None:
    array = np.array(noise(12, 9))

    assert np.array_equal(pixels(offline.load(make_image_source(convert(array)))), array)


def test_grey_and_transparent_arrays_are_converted(offline: MediaLoader) -> None:
    grey = np.asarray(noise(5, 4, "L"))
    clear = np.zeros((4, 5, 4), dtype=np.uint8)

    for array in (grey, grey[:, :, None]):
        assert np.array_equal(pixels(offline.load(make_image_source(array)))[:, :, 1], grey)
    assert (pixels(offline.load(make_image_source(clear))) == 255).all()


@pytest.mark.parametrize(
    "source, message",
    [
        (np.zeros((4, 4, 3), dtype=np.float32), "float32 with shape [4, 4, 3]"),
        (np.zeros((4, 4, 2), dtype=np.uint8), "uint8 with shape [4, 4, 2]"),
        (np.zeros((2, 4, 4, 3), dtype=np.uint8), "with shape [2, 4, 4, 3]"),
        (np.zeros((0, 4, 3), dtype=np.uint8), "with shape [0, 4, 3]"),
        (PIL.Image.new("F", (2, 2)), "mode F"),
        (PIL.Image.new("RGB", (0, 2)), "no pixels"),
        (object(), "got object"),
        (None, "got NoneType"),
        ("ftp://x/y.png", "unsupported image URL"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_invalid_images_are_refused(source: Any, message: str, offline: MediaLoader) -> None:
    with pytest.raises(BadRequest) as caught:
        offline.load(make_image_source(source))

    assert caught.value.message.startswith(f"{PARAM_PATH}: ") and message in caught.value.message


@pytest.mark.parametrize("source", [PIL.Image.new("RGB", (2, 2)), np.zeros((4, 4, 3), dtype=np.uint8), 3, None])
def test_a_server_accepts_only_strings(source: Any, online: MediaLoader) -> None:
    with pytest.raises(BadRequest, match=f"an image must be a string, got {type(source).__name__}"):
        online.load(make_image_source(source))


def test_the_result_does_not_share_memory_with_the_callers_image(offline: MediaLoader) -> None:
    image = PIL.Image.new("RGB", (2, 2))

    found = offline.load(make_image_source(image))
    image.putpixel((0, 0), (9, 9, 9))

    assert found.getpixel((0, 0)) == (0, 0, 0)
