"""Images as Qwen's towers read them: the pixels of Transformers' processor, and positions on three axes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from transformers import Qwen2VLConfig, Qwen2VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from cenote.errors import BadRequest, InputTooLong
from cenote.inputs.images.image_processor import reader_of
from cenote.inputs.images.qwen_vl import QwenReader
from cenote.inputs.images.transforms import numbers_of
from cenote.models.vision_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import Picture

PAD = 7
FILES: dict[str, dict[str, Any]] = {
    "of Qwen3-VL": {
        "size": {"shortest_edge": 32 * 64, "longest_edge": 64 * 96},
        "patch_size": 16,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
    "of Qwen2-VL": {"min_pixels": 56 * 56, "max_pixels": 100 * 100, "size": {"shortest_edge": 1, "longest_edge": 1}},
    "empty": {},
}
# width and height: portrait, landscape, tiny, a line, exact, larger than it may be
SHAPES = [(30, 77), (200, 90), (5, 9), (300, 7), (64, 64), (1200, 1000)]


def reader(files: Mapping[str, Any], max_tokens: int = 4096, **options: Any) -> QwenReader:
    patch_size = files.get("patch_size", 14)  # as config.json says as well
    spec = ImageSpec(reader="qwen_vl", mark="<|image_pad|>", patch_size=patch_size, merge=2)
    found = reader_of(spec, ProcessorFiles(files), {"<|image_pad|>": PAD}.get, max_tokens, options)
    assert isinstance(found, QwenReader)
    return found


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def seen(files: Mapping[str, Any], width: int, height: int, **given: Any) -> Picture:
    return reader(files).read(noise(width, height), given, "an image")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("files", FILES)
def test_patches_are_those_of_the_reference(files: str, shape: tuple[int, int]) -> None:
    expected = Qwen2VLImageProcessorPil(**deepcopy(FILES[files]))(noise(*shape), return_tensors="pt")

    picture = seen(FILES[files], *shape)

    assert [1, *picture.grids[0]] == expected["image_grid_thw"][0].tolist()
    numbers = numbers_of(picture.patches, picture.colours)
    for frame in expected["pixel_values"].unflatten(1, (3, 2, -1)).unbind(2):  # of which a still image needs one
        assert_close(numbers, frame.flatten(1), atol=1e-5, rtol=0)
    assert picture.token_ids.tolist() == [PAD] * (len(picture.patches) // 4)
    assert picture.num_rows == len(picture.token_ids)


def test_a_request_changes_how_large_an_image_may_be_by_either_name() -> None:
    files = FILES["of Qwen2-VL"]

    usual, by_pixels = seen(files, 200, 90), seen(files, 200, 90, max_pixels=28 * 28 * 4)
    by_size = seen(files, 200, 90, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 4})

    assert len(by_pixels.patches) == len(by_size.patches) < len(usual.patches)
    assert len({usual.key, by_pixels.key}) == 2


def test_options_of_the_server_come_before_the_files_and_after_those_of_a_request() -> None:
    small = reader(FILES["of Qwen3-VL"], max_pixels=32 * 32 * 2, min_pixels=1)
    image = noise(200, 90)

    assert len(small.read(image, {}, "").token_ids) == 2
    assert len(small.read(image, {"size": {"longest_edge": 32 * 32 * 6}}, "").token_ids) > 2


def test_an_image_that_is_almost_a_line_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\].*2100 x 10 pixels.*more than 200 times as long"):
        reader({}).read(noise(2100, 10), {}, "messages[0]")


def test_an_image_of_more_tokens_than_the_model_reads_is_refused_by_name() -> None:
    with pytest.raises(InputTooLong, match=r"messages\[2\].*becomes 1248 tokens.*reads 64 at most.*max_pixels"):
        reader({}, max_tokens=64).read(noise(1200, 1000), {}, "messages[2]")


def test_an_option_that_requests_do_not_have_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadRequest, match="'patch_size'.*min_pixels, max_pixels, size"):
        seen({}, 30, 30, patch_size=7)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_pixels": 0}, "max_pixels is 0; it is a whole number, 1 to"),
        ({"min_pixels": "many"}, "min_pixels is 'many'"),
        ({"size": {"longest_edge": -1}}, "size is {'longest_edge': -1}; it is a number of pixels, or an object"),
        ({"size": 224}, "size is 224; it is an object with shortest_edge and longest_edge"),
        ({"size": {"height": 9}}, "shortest_edge and longest_edge"),
    ],
)
def test_limits_that_mean_nothing_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        seen({}, 30, 30, **given)


def test_positions_are_those_of_the_reference() -> None:
    pictures = [seen(FILES["of Qwen2-VL"], *shape) for shape in ((200, 90), (30, 77), (30, 30))]
    images = [picture.token_ids for picture in pictures]
    token_ids = np.concatenate([[1, 2, 3], images[0], [4], images[1], [5, 5], images[2]]).astype(np.int32)
    rows = np.flatnonzero(token_ids == PAD)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    text = sizes | {"vocab_size": 8, "intermediate_size": 8}
    vision = {"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 1, "mlp_ratio": 1}
    with torch.device("meta"):
        model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=PAD))
    ids, grids = torch.from_numpy(token_ids).long()[None], [[1, *picture.grids[0]] for picture in pictures]
    expected, _ = model.get_rope_index(ids, (ids == PAD).int(), image_grid_thw=torch.tensor(grids))

    ours = reader(FILES["of Qwen2-VL"]).axes(token_ids, pictures, rows)

    assert ours.tolist() == expected[:, 0].tolist()


def test_images_without_a_word_between_them_follow_each_other() -> None:
    first, second = (seen(FILES["of Qwen2-VL"], *shape) for shape in ((30, 77), (30, 30)))
    token_ids = np.concatenate([first.token_ids, second.token_ids])

    axes = reader(FILES["of Qwen2-VL"]).axes(token_ids, (first, second), np.arange(len(token_ids)))

    longest = max(first.grids[0]) // 2
    assert axes[:, first.num_rows].tolist() == [longest] * 3
    assert axes.max() == longest + max(second.grids[0]) // 2 - 1
