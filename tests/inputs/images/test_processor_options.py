"""Options about images, as strangers may write them: every reader answers with an image or with a refusal."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from PIL import Image

from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.image_processor import ImageReader, reader_of
from cenote.models.vision_spec import ImageSpec, ProcessorFiles

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
NONSENSE: list[Any] = [
    *(True, -1, 0, 10**400, 7.5, float("nan"), float("inf"), 1e-300, "a", "x" * 100_000, [], {}, [1.0] * 100_000, deep),
    *([float("nan")] * 3, [[28]], [["a", "b"]], {"height": "a", "width": 2 * 10**9}, {"shortest_edge": "a" * 10**6}),
]
SHAPES = [(1, 1), (1, 4000), (4000, 1), (60, 40)]


def reader(kind: str, files: Mapping[str, Any] | None = None, **options: Any) -> ImageReader:
    spec = ImageSpec(
        reader=kind, mark="<image>", token="<i>", image_token_id=5, patch_size=14, merge=2, options=OPTIONS[kind]
    )
    return reader_of(spec, ProcessorFiles(files or {}), lambda token: 5, 4096, options)


@pytest.mark.parametrize("kind", OPTIONS)
def test_whatever_an_option_is_the_image_is_read_or_refused(kind: str) -> None:
    reads, image = reader(kind), Image.new("RGB", (60, 40))
    for name in reads.KNOWN:
        for value in NONSENSE:
            try:
                reads.read(image, {name: value}, "an image")
            except BadRequest as error:
                assert len(error.message) < 1000


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_image_of_any_shape_is_read_or_refused_by_its_name(kind: str) -> None:
    for shape in SHAPES:
        try:
            reader(kind).read(Image.new("RGB", shape), {}, "messages[3]")
        except BadRequest as error:
            assert "messages[3]" in error.message
            assert "mm_processor_kwargs=" not in error.message


def test_a_text_where_a_number_belongs_is_not_multiplied() -> None:
    tracemalloc.start()
    with pytest.raises(BadRequest, match="size is .*'height': 'a'.*it is a number of pixels, or an object"):
        reader("resized").read(Image.new("RGB", (9, 9)), {"size": {"height": "a", "width": 10**9}}, "an image")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10**6


def test_many_sizes_to_choose_from_are_refused() -> None:
    with pytest.raises(BadRequest, match="image_grid_pinpoints is .* 1 to 256 pairs"):
        reader("llava_next").read(Image.new("RGB", (9, 9)), {"image_grid_pinpoints": [[28, 28]] * 10_000}, "an image")


@pytest.mark.parametrize("kind", OPTIONS)
def test_null_is_what_the_files_say(kind: str) -> None:
    image, reads = Image.new("RGB", (60, 40), "red"), reader(kind)

    usual = reads.read(image, {}, "an image")
    nulls = reads.read(image, dict.fromkeys(reads.KNOWN), "an image")

    assert usual.key == nulls.key and usual.colours == nulls.colours


@pytest.mark.parametrize(
    ("kind", "files", "words"),
    [
        ("qwen_vl", {"patch_size": 16}, "patch_size is 16, and config.json says 14"),
        ("qwen_vl", {"image_mean": "abc"}, "image_mean is 'abc'; it is 3 numbers"),
        ("qwen_vl", {"size": {"longest_edge": "many"}}, "max_pixels is 'many'"),
        ("resized", {"image_std": [0, 1, 1]}, r"image_std is \[0, 1, 1\]"),
        ("idefics3", {"do_image_splitting": "yes"}, "do_image_splitting is 'yes'; it is true or false"),
    ],
)
def test_files_that_make_no_sense_are_refused_at_the_start(kind: str, files: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=f"preprocessor_config.json.*{words}"):
        reader(kind, files)


def test_phi3v_does_not_count_with_numbers_of_any_length() -> None:
    endless = f"<|image_{'9' * 5000}|>"

    assert reader("phi3v").marked(endless) == endless
    with pytest.raises(BadRequest, match="the numbers"):
        reader("phi3v").marked("<|image_2|>" * 10_000)
