"""Image processors of CLIP, SigLIP and SigLIP 2: pixels equal those of Transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest
from cenote.inputs.images.fixed_size import resize_and_crop
from cenote.inputs.images.image_processor import ImageProcessor, make_image_processor
from cenote.inputs.images.transforms import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET_STANDARD,
    pil_to_array,
    resolve_normalization,
)
from cenote.models.image_spec import ImageSpec, ProcessorFiles

# width and height: portrait, landscape, the target size, tiny, one pixel wide, much larger
SIZES = [(37, 91), (120, 53), (56, 56), (3, 5), (1, 40), (301, 211)]


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def make_processor(kind: str, *, files: dict[str, Any] | None = None, **options: Any) -> ImageProcessor:
    spec = ImageSpec(processor=kind, placeholder_token="", single_modality_name="CLIP", patch_size=14, options=options)
    return make_image_processor(spec, ProcessorFiles(files or {}), lambda token: None, 16, {})


def pixels(image: Image.Image, options: dict[str, Any], mean: Any = CLIP_MEAN, std: Any = CLIP_STD) -> torch.Tensor:
    """Return the normalized pixels of a resized image."""
    resized = torch.from_numpy(np.ascontiguousarray(pil_to_array(resize_and_crop(image, options))))
    return normalize_patches(resized[None].flatten(1), resolve_normalization(options, mean, std)).reshape(resized.shape)


CLIP_OPTIONS: list[dict[str, Any]] = [
    {"size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}},
    {"size": {"shortest_edge": 60}, "crop_size": {"height": 42, "width": 50}, "resample": 2},
    {"size": {"height": 30, "width": 40}, "crop_size": {"height": 51, "width": 43}},  # with black padding
    {"size": {"shortest_edge": 56}, "do_center_crop": False, "do_normalize": False},
    {"do_resize": False, "crop_size": {"height": 56, "width": 56}, "do_rescale": False},
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", CLIP_OPTIONS)
def test_pixels_match_clips_processor(options: dict[str, Any], size: tuple[int, int]) -> None:
    image = noise(*size)
    expected = CLIPImageProcessorPil(**options)(image, return_tensors="pt")["pixel_values"][0]

    torch.testing.assert_close(pixels(image, {"do_center_crop": True} | options), expected.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_pixels_match_siglips_processor(size: tuple[int, int]) -> None:
    options, image = {"size": {"height": 56, "width": 42}}, noise(*size)
    expected = SiglipImageProcessorPil(**options)(image, return_tensors="pt")["pixel_values"][0]

    torch.testing.assert_close(
        pixels(image, options, IMAGENET_STANDARD, IMAGENET_STANDARD), expected, rtol=0, atol=1e-5
    )


def test_a_single_number_is_the_shortest_edge_and_the_crop_size() -> None:
    image = noise(120, 53)
    older, newer = {"size": 60, "crop_size": 56, "do_center_crop": True}, CLIP_OPTIONS[0] | {"do_center_crop": True}

    assert torch.equal(pixels(image, older), pixels(image, newer | {"size": {"shortest_edge": 60}}))


def test_patches_are_in_row_order_followed_by_the_pooled_row() -> None:
    options = {"image_size": 56, "size": {"height": 56, "width": 56}}
    processed = make_processor("resized", **options).preprocess(image := noise(60, 80), {}, "here")

    pixel_values = pil_to_array(resize_and_crop(image, options))
    assert processed.patch_grids == ((4, 4),) and processed.original_size == (80, 60)
    assert np.array_equal(processed.patches[6].reshape(3, 14, 14), pixel_values[:, 14:28, 28:42])
    assert len(processed.token_ids) == processed.num_embeds == 17


def test_a_null_value_in_a_file_is_ignored() -> None:
    files = {"do_resize": None, "size": {"height": 56, "width": 56}, "do_center_crop": None, "crop_size": None}
    processor = make_processor("resized", files=files, image_size=56, size={"height": 14, "width": 14})

    assert processor.preprocess(noise(60, 80), {}, "here").patch_grids == ((4, 4),)


def test_an_extreme_aspect_ratio_is_refused() -> None:
    processor = make_processor("resized", image_size=56, size={"shortest_edge": 56}, do_center_crop=True, crop_size=56)

    with pytest.raises(BadRequest, match="4001 x 20 pixels exceeds the maximum aspect ratio of 200"):
        processor.preprocess(noise(4001, 20), {}, "here")


def test_a_size_that_needs_too_much_memory_is_refused_before_resizing() -> None:
    processor = make_processor("resized", image_size=56, size={"shortest_edge": 56}, do_center_crop=True, crop_size=56)

    for overrides in ({"size": {"height": 10**6, "width": 10**6}}, {"crop_size": 10**5}, {"size": 10**7}):
        with pytest.raises(BadRequest, match="the limit is 40,000,000"):
            processor.preprocess(noise(60, 40), overrides, "here")


@pytest.mark.parametrize("max_patches", [1, 7, 30])
@pytest.mark.parametrize("size", [*SIZES, (14, 28), (999, 2)])
def test_grids_and_patches_match_siglip2s_processor(size: tuple[int, int], max_patches: int) -> None:
    image = noise(*size)
    expected = Siglip2ImageProcessorPil(patch_size=14, max_num_patches=max_patches)(image, return_tensors="pt")
    grid = tuple(expected["spatial_shapes"][0].tolist())

    processed = make_processor("naflex", files={"max_num_patches": max_patches}).preprocess(image, {}, "here")

    count = grid[0] * grid[1]
    assert processed.patch_grids == (grid,) and count <= max_patches
    values = normalize_patches(torch.from_numpy(processed.patches), processed.normalization)
    channels_last = values.reshape(count, 3, 14, 14).permute(0, 2, 3, 1).flatten(1)
    torch.testing.assert_close(channels_last, expected["pixel_values"][0][:count], rtol=0, atol=1e-5)


def test_a_request_may_change_max_num_patches_up_to_a_limit() -> None:
    processor, image = make_processor("naflex"), noise(300, 200)

    few, many = (processor.preprocess(image, {"max_num_patches": number}, "here") for number in (10, 300))
    assert len(few.patches) <= 10 < len(many.patches) <= 300 and few.cache_key != many.cache_key
    with pytest.raises(BadRequest, match="max_num_patches must be 1 to 4096, got 10000000"):
        processor.preprocess(image, {"max_num_patches": 10**7}, "here")


def test_without_resizing_an_image_is_cropped_to_whole_patches() -> None:
    processor, image = make_processor("naflex"), noise(60, 33)

    processed = processor.preprocess(image, {"do_resize": False}, "here")

    assert processed.patch_grids == ((2, 4),)
    with pytest.raises(BadRequest, match="has 8 patches, expected 1 to 7"):
        processor.preprocess(image, {"do_resize": False, "max_num_patches": 7}, "here")
