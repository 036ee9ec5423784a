"""Images of one size, and of at most so many patches: the pixels are those of Transformers' processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from cenote.errors import BadRequest
from cenote.inputs.images.fixed_size import resize_and_crop
from cenote.inputs.images.image_processor import ImageProcessor, make_image_processor
from cenote.inputs.images.transforms import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_STANDARD,
    normalize_patches,
    pil_to_tensor,
    resolve_normalization,
)
from cenote.models.vision_spec import ImageSpec, ProcessorFiles

# width and height: portrait, landscape, as large as asked for, tiny, a line, much larger
SIZES = [(37, 91), (120, 53), (56, 56), (3, 5), (1, 40), (301, 211)]


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_processor(kind: str, *, files: dict[str, Any] | None = None, **options: Any) -> ImageProcessor:
    spec = ImageSpec(processor=kind, placeholder_token="", single_modality_name="CLIP", patch_size=14, options=options)
    return make_image_processor(spec, ProcessorFiles(files or {}), lambda token: None, 16, {})


def pixels(image: Image.Image, options: dict[str, Any], mean: Any = CLIP_MEAN, std: Any = CLIP_STD) -> torch.Tensor:
    """All of an image, as a tower would read it."""
    made = pil_to_tensor(resize_and_crop(image, options))
    return normalize_patches(made[None].flatten(1), resolve_normalization(options, mean, std)).reshape(made.shape)


CLIP_OPTIONS: list[dict[str, Any]] = [
    {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    {"size": {"shortest_edge": 60}, "crop_size": {"height": 42, "width": 50}, "resample": 2},
    {"size": {"height": 30, "width": 40}, "crop_size": {"height": 51, "width": 43}},  # with a black frame
    {"size": {"shortest_edge": 56}, "do_center_crop": False, "do_normalize": False},
    {"do_resize": False, "crop_size": {"height": 56, "width": 56}, "do_rescale": False},
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", CLIP_OPTIONS)
def test_pixels_are_those_of_clips_processor(way: dict[str, Any], size: tuple[int, int]) -> None:
    image = noise(*size)
    expected = CLIPImageProcessorPil(**way)(image, return_tensors="pt")["pixel_values"][0]

    torch.testing.assert_close(pixels(image, {"do_center_crop": True} | way), expected.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_are_those_of_siglips_processor(size: tuple[int, int]) -> None:
    way, image = {"size": {"height": 56, "width": 42}}, noise(*size)
    expected = SiglipImageProcessorPil(**way)(image, return_tensors="pt")["pixel_values"][0]

    torch.testing.assert_close(pixels(image, way, IMAGENET_STANDARD, IMAGENET_STANDARD), expected, rtol=0, atol=1e-5)


def test_one_number_is_the_shortest_edge_and_the_side_of_what_is_cropped() -> None:
    image = noise(120, 53)
    older, newer = {"size": 60, "crop_size": 56, "do_center_crop": True}, CLIP_OPTIONS[0] | {"do_center_crop": True}

    assert torch.equal(pixels(image, older), pixels(image, newer | {"size": {"shortest_edge": 60}}))


def test_patches_are_in_row_order_followed_by_the_pooled_row() -> None:
    way = {"image_size": 56, "size": {"height": 56, "width": 56}}
    picture = make_processor("resized", **way).preprocess(image := noise(60, 80), {}, "here")

    whole = pil_to_tensor(resize_and_crop(image, way))
    assert picture.patch_grids == ((4, 4),) and picture.original_size == (80, 60)
    assert torch.equal(picture.patches[6].reshape(3, 14, 14), whole[:, 14:28, 28:42])
    assert len(picture.token_ids) == picture.num_embeds == 17


def test_a_null_value_in_a_file_is_ignored() -> None:
    files = {"do_resize": None, "size": {"height": 56, "width": 56}, "do_center_crop": None, "crop_size": None}
    read = make_processor("resized", files=files, image_size=56, size={"height": 14, "width": 14})

    assert read.preprocess(noise(60, 80), {}, "here").patch_grids == ((4, 4),)


def test_an_extreme_aspect_ratio_is_refused() -> None:
    read = make_processor("resized", image_size=56, size={"shortest_edge": 56}, do_center_crop=True, crop_size=56)

    with pytest.raises(BadRequest, match="4001 x 20 pixels is more than 200 times as long as it is wide"):
        read.preprocess(noise(4001, 20), {}, "here")


def test_a_size_that_needs_too_much_memory_is_refused_before_resizing() -> None:
    read = make_processor("resized", image_size=56, size={"shortest_edge": 56}, do_center_crop=True, crop_size=56)

    for given in ({"size": {"height": 10**6, "width": 10**6}}, {"crop_size": 10**5}, {"size": 10**7}):
        with pytest.raises(BadRequest, match="at most 40,000,000 are made"):
            read.preprocess(noise(60, 40), given, "here")


@pytest.mark.parametrize("most", [1, 7, 30])
@pytest.mark.parametrize("size", [*SIZES, (14, 28), (999, 2)])
def test_grids_and_patches_are_those_of_siglip2s_processor(size: tuple[int, int], most: int) -> None:
    image = noise(*size)
    expected = Siglip2ImageProcessorPil(patch_size=14, max_num_patches=most)(image, return_tensors="pt")
    grid = tuple(expected["spatial_shapes"][0].tolist())

    picture = make_processor("naflex", files={"max_num_patches": most}).preprocess(image, {}, "here")

    count = grid[0] * grid[1]
    assert picture.patch_grids == (grid,) and count <= most
    numbers = normalize_patches(picture.patches, picture.normalization)
    colours_last = numbers.reshape(count, 3, 14, 14).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(colours_last, expected["pixel_values"][0][:count], rtol=0, atol=1e-5)


def test_a_request_may_ask_for_more_patches_but_not_for_any_number() -> None:
    read, image = make_processor("naflex"), noise(300, 200)

    few, many = (read.preprocess(image, {"max_num_patches": most}, "here") for most in (10, 300))
    assert len(few.patches) <= 10 < len(many.patches) <= 300 and few.cache_key != many.cache_key
    with pytest.raises(BadRequest, match="max_num_patches is 1 to 4096, got 10000000"):
        read.preprocess(image, {"max_num_patches": 10**7}, "here")


def test_an_image_that_is_not_to_be_resized_is_cut_to_whole_patches() -> None:
    read, image = make_processor("naflex"), noise(60, 33)

    picture = read.preprocess(image, {"do_resize": False}, "here")

    assert picture.patch_grids == ((2, 4),)
    with pytest.raises(BadRequest, match="is 8 patches, and 1 to 7 are read"):
        read.preprocess(image, {"do_resize": False, "max_num_patches": 7}, "here")
