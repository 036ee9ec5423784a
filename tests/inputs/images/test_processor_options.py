"""Untrusted image processor options: every processor accepts or refuses any value."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from PIL import Image

from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.image_processor import ImageProcessor, make_image_processor
from cenote.models.image_spec import ImageSpec, ProcessorFiles

SQUARE = {"image_size": 28, "size": {"height": 28, "width": 28}, "crop_size": {"height": 28, "width": 28}}
TILES = {"min_dynamic_patch": 1, "max_dynamic_patch": 4, "dynamic_image_size": True, "use_thumbnail": True}
OPTIONS: dict[str, dict[str, Any]] = {
    "qwen_vl": {"min_pixels": 28 * 28, "max_pixels": 56 * 56},
    "resized": SQUARE,
    "naflex": {},
    "paligemma": SQUARE,
    "idefics3": {"image_size": 28},
    "nemotron": {"image_size": 28, **TILES},
    "llava_next": {**SQUARE, "image_grid_pinpoints": [[28, 56], [56, 28]]},
    "phi3v": {"image_size": 28, "num_crops": 4, "first_token": "<s>"},
}
deep: Any = 1
for _ in range(3000):
    deep = [deep]
INVALID_VALUES: list[Any] = [
    *(True, -1, 0, 10**400, 7.5, float("nan"), float("inf"), 1e-300, "a", "x" * 100_000, [], {}, [1.0] * 100_000, deep),
    *([float("nan")] * 3, [[28]], [["a", "b"]], {"height": "a", "width": 2 * 10**9}, {"shortest_edge": "a" * 10**6}),
]
SHAPES = [(1, 1), (1, 4000), (4000, 1), (60, 40)]


def make_processor(kind: str, files: Mapping[str, Any] | None = None, **options: Any) -> ImageProcessor:
    spec = ImageSpec(
        processor=kind,
        placeholder_token="<image>",
        prompt_token="<i>",
        image_token_id=5,
        patch_size=14,
        merge_size=2,
        options=OPTIONS[kind],
    )
    return make_image_processor(spec, ProcessorFiles(files or {}), lambda token: 5, 4096, options)


@pytest.mark.parametrize("kind", OPTIONS)
def test_any_option_value_is_accepted_or_refused(kind: str) -> None:
    processor, image = make_processor(kind), Image.new("RGB", (60, 40))
    for name in processor.SUPPORTED_OPTIONS:
        for value in INVALID_VALUES:
            try:
                processor.preprocess(image, {name: value}, "an image")
            except BadRequest as error:
                assert len(error.message) < 1000


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_image_of_any_shape_is_processed_or_refused_with_its_name(kind: str) -> None:
    for shape in SHAPES:
        try:
            make_processor(kind).preprocess(Image.new("RGB", shape), {}, "messages[3]")
        except BadRequest as error:
            assert "messages[3]" in error.message
            assert "mm_processor_kwargs=" not in error.message


def test_a_string_instead_of_a_number_is_refused_without_large_allocations() -> None:
    tracemalloc.start()
    with pytest.raises(BadRequest, match="invalid size=.*'height': 'a'.*expected a number of pixels, or an object"):
        make_processor("resized").preprocess(
            Image.new("RGB", (9, 9)), {"size": {"height": "a", "width": 10**9}}, "an image"
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10**6


def test_too_many_pinpoints_are_refused() -> None:
    with pytest.raises(BadRequest, match="invalid image_grid_pinpoints=.* 1 to 256 pairs"):
        make_processor("llava_next").preprocess(
            Image.new("RGB", (9, 9)), {"image_grid_pinpoints": [[28, 28]] * 10_000}, "an image"
        )


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_null_option_keeps_the_value_of_the_files(kind: str) -> None:
    image, processor = Image.new("RGB", (60, 40), "red"), make_processor(kind)

    default = processor.preprocess(image, {}, "an image")
    with_nulls = processor.preprocess(image, dict.fromkeys(processor.SUPPORTED_OPTIONS), "an image")

    assert default.cache_key == with_nulls.cache_key and default.normalization == with_nulls.normalization


@pytest.mark.parametrize(
    ("kind", "files", "message"),
    [
        ("qwen_vl", {"patch_size": 16}, "patch_size=16 differs from 14 in config.json"),
        ("qwen_vl", {"image_mean": "abc"}, "invalid image_mean='abc'; expected 3 numbers"),
        ("qwen_vl", {"size": {"longest_edge": "many"}}, "invalid max_pixels='many'"),
        ("resized", {"image_std": [0, 1, 1]}, r"invalid image_std=\[0, 1, 1\]"),
        ("idefics3", {"do_image_splitting": "yes"}, "invalid do_image_splitting='yes'; expected true or false"),
    ],
)
def test_invalid_processor_files_are_refused_at_load(kind: str, files: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=f"preprocessor_config.json.*{message}"):
        make_processor(kind, files)


def test_phi3v_refuses_huge_image_numbers() -> None:
    huge_number = f"<|image_{'9' * 5000}|>"

    assert make_processor("phi3v").normalize_placeholders(huge_number) == huge_number
    with pytest.raises(BadRequest, match="the numbers"):
        make_processor("phi3v").normalize_placeholders("<|image_2|>" * 10_000)
