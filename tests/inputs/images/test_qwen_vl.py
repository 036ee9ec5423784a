"""Image processor of Qwen2-VL and Qwen3-VL: patches and M-RoPE positions equal those of Transformers."""

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

from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest, InputTooLong
from cenote.inputs.images.image_processor import make_image_processor
from cenote.inputs.images.qwen_vl import QwenVLImageProcessor
from cenote.models.image_spec import ImageSpec, ProcessorFiles
from cenote.protocol.images import ProcessedImage

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
# width and height: portrait, landscape, tiny, a few pixels high, exact, larger than max_pixels
SHAPES = [(30, 77), (200, 90), (5, 9), (300, 7), (64, 64), (1200, 1000)]


def make_processor(files: Mapping[str, Any], max_tokens: int = 4096, **options: Any) -> QwenVLImageProcessor:
    patch_size = files.get("patch_size", 14)  # config.json has the same value
    spec = ImageSpec(processor="qwen_vl", placeholder_token="<|image_pad|>", patch_size=patch_size, merge_size=2)
    processor = make_image_processor(spec, ProcessorFiles(files), {"<|image_pad|>": PAD}.get, max_tokens, options)
    assert isinstance(processor, QwenVLImageProcessor)
    return processor


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


def preprocess(files: Mapping[str, Any], width: int, height: int, **overrides: Any) -> ProcessedImage:
    return make_processor(files).preprocess(noise(width, height), overrides, "an image")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("files", FILES)
def test_patches_match_transformers(files: str, shape: tuple[int, int]) -> None:
    expected = Qwen2VLImageProcessorPil(**deepcopy(FILES[files]))(noise(*shape), return_tensors="pt")

    processed = preprocess(FILES[files], *shape)

    assert [1, *processed.patch_grids[0]] == expected["image_grid_thw"][0].tolist()
    values = normalize_patches(torch.from_numpy(processed.patches), processed.normalization)
    for frame in (
        expected["pixel_values"].unflatten(1, (3, 2, -1)).unbind(2)
    ):  # Transformers repeats a still image to two frames
        assert_close(values, frame.flatten(1), atol=1e-5, rtol=0)
    assert processed.token_ids.tolist() == [PAD] * (len(processed.patches) // 4)
    assert processed.num_embeds == len(processed.token_ids)


def test_both_names_of_the_pixel_limits_are_accepted() -> None:
    files = FILES["of Qwen2-VL"]

    default, by_pixels = preprocess(files, 200, 90), preprocess(files, 200, 90, max_pixels=28 * 28 * 4)
    by_size = preprocess(files, 200, 90, size={"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 4})

    assert len(by_pixels.patches) == len(by_size.patches) < len(default.patches)
    assert len({default.cache_key, by_pixels.cache_key}) == 2


def test_server_options_override_the_files_and_request_options_override_both() -> None:
    small = make_processor(FILES["of Qwen3-VL"], max_pixels=32 * 32 * 2, min_pixels=1)
    image = noise(200, 90)

    assert len(small.preprocess(image, {}, "").token_ids) == 2
    assert len(small.preprocess(image, {"size": {"longest_edge": 32 * 32 * 6}}, "").token_ids) > 2


def test_an_extreme_aspect_ratio_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"messages\[0\].*2100 x 10 pixels.*aspect ratio exceeds 200"):
        make_processor({}).preprocess(noise(2100, 10), {}, "messages[0]")


def test_an_image_with_too_many_tokens_is_refused_with_its_path() -> None:
    with pytest.raises(InputTooLong, match=r"messages\[2\].*becomes 1248 tokens.*reads at most 64;.*max_pixels"):
        make_processor({}, max_tokens=64).preprocess(noise(1200, 1000), {}, "messages[2]")


def test_an_unknown_option_is_refused_with_the_supported_ones() -> None:
    with pytest.raises(BadRequest, match="'patch_size'.*min_pixels, max_pixels, size"):
        preprocess({}, 30, 30, patch_size=7)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"max_pixels": 0}, "invalid max_pixels=0; expected an integer from 1 to"),
        ({"min_pixels": "many"}, "invalid min_pixels='many'"),
        (
            {"size": {"longest_edge": -1}},
            "invalid size={'longest_edge': -1}; expected a number of pixels, or an object",
        ),
        ({"size": 224}, "invalid size=224; expected an object with shortest_edge and longest_edge"),
        ({"size": {"height": 9}}, "shortest_edge and longest_edge"),
    ],
)
def test_invalid_pixel_limits_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        preprocess({}, 30, 30, **overrides)


def test_mrope_positions_match_transformers() -> None:
    processed = [preprocess(FILES["of Qwen2-VL"], *shape) for shape in ((200, 90), (30, 77), (30, 30))]
    images = [image.token_ids for image in processed]
    token_ids = np.concatenate([[1, 2, 3], images[0], [4], images[1], [5, 5], images[2]]).astype(np.int32)
    rows = np.flatnonzero(token_ids == PAD)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    text = sizes | {"vocab_size": 8, "intermediate_size": 8}
    vision = {"depth": 1, "embed_dim": 8, "hidden_size": 8, "num_heads": 1, "mlp_ratio": 1}
    with torch.device("meta"):
        model = Qwen2VLModel(Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=PAD))
    ids, grids = torch.from_numpy(token_ids).long()[None], [[1, *image.patch_grids[0]] for image in processed]
    expected, _ = model.get_rope_index(ids, (ids == PAD).int(), image_grid_thw=torch.tensor(grids))

    ours = make_processor(FILES["of Qwen2-VL"]).mrope_positions(token_ids, processed, rows)

    assert ours.tolist() == expected[:, 0].tolist()


def test_adjacent_images_get_consecutive_positions() -> None:
    first, second = (preprocess(FILES["of Qwen2-VL"], *shape) for shape in ((30, 77), (30, 30)))
    token_ids = np.concatenate([first.token_ids, second.token_ids])

    positions = make_processor(FILES["of Qwen2-VL"]).mrope_positions(
        token_ids, (first, second), np.arange(len(token_ids))
    )

    longest = max(first.patch_grids[0]) // 2
    assert positions[:, first.num_embeds].tolist() == [longest] * 3
    assert positions.max() == longest + max(second.patch_grids[0]) // 2 - 1
