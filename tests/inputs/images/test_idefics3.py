"""Image processor of Idefics3: tiles, pixels and tokens equal those of Transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.testing import assert_close

from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest, InputTooLong
from cenote.inputs.images.idefics3 import Idefics3ImageProcessor
from cenote.inputs.images.transforms import patchify
from cenote.models.image_spec import ImageSpec, ProcessorFiles
from tests.models.modernvbert import FACTOR, IMAGE_FILE, PATCH, SPECIAL, TILE, make_image, processor, tiny_tokenizer

SPEC = ImageSpec(
    processor="idefics3",
    placeholder_token="<image>",
    image_token_id=SPECIAL.index("<image>"),
    patch_size=PATCH,
    merge_size=FACTOR,
    options={"image_size": TILE},
)
# portrait, landscape, square, tiny, two pixels high, larger than the maximum size
SIZES = [(40, 90), (131, 64), (96, 96), (7, 5), (150, 2), (333, 290), (3, 97)]
CHANGES: list[dict[str, Any]] = [{}, {"do_image_splitting": False}, {"size": {"longest_edge": TILE}}, {"resample": 2}]


def make_processor(
    tokenizer: Tokenizer | None = None, max_tokens: int = 4096, **changes: Any
) -> Idefics3ImageProcessor:
    tokenizer = tokenizer or tiny_tokenizer()
    return Idefics3ImageProcessor(SPEC, ProcessorFiles(IMAGE_FILE | changes), tokenizer.token_to_id, max_tokens, {})


@pytest.mark.parametrize("changes", CHANGES, ids=["tiles", "no splitting", "one tile", "bilinear"])
@pytest.mark.parametrize("size", SIZES)
def test_pixels_and_tokens_match_transformers(size: tuple[int, int], changes: dict[str, Any]) -> None:
    image = make_image(*size)
    tokenizer = tiny_tokenizer()
    theirs = processor(tokenizer, **changes)(images=[image], text=["<image>"])

    ours = make_processor(tokenizer, **changes).preprocess(image, {}, "image")

    pixels = torch.from_numpy(np.concatenate([patchify(tile.numpy(), PATCH) for tile in theirs["pixel_values"][0]]))
    assert_close(normalize_patches(torch.from_numpy(ours.patches), ours.normalization), pixels, atol=1e-5, rtol=0)
    assert ours.token_ids.tolist() == theirs["input_ids"][0, 1:-1].tolist()
    assert ours.num_embeds == int((theirs["input_ids"] == SPEC.image_token_id).sum())
    assert len(ours.patch_grids) == len(theirs["pixel_values"][0]) and set(ours.patch_grids) == {
        (TILE // PATCH, TILE // PATCH)
    }


def test_a_blank_line_is_two_newline_tokens_if_the_vocabulary_has_no_token_for_it() -> None:
    image, tokenizer = make_image(90, 60), tiny_tokenizer(empty_lines=False)

    ours = make_processor(tokenizer).preprocess(image, {}, "image")

    theirs = processor(tokenizer)(images=[image], text=["<image>"])["input_ids"][0, 1:-1]
    assert ours.token_ids.tolist() == theirs.tolist()


def test_only_patch_tokens_get_embeddings() -> None:
    ours = make_processor().preprocess(make_image(60, 60), {}, "image")

    assert np.array_equal(ours.is_embed, ours.token_ids == SPEC.image_token_id)
    assert ours.patches.shape == (ours.num_embeds * FACTOR**2, 3 * PATCH**2)


def test_a_request_may_change_the_tiling_which_changes_the_cache_key() -> None:
    image = make_image(90, 60)
    default, single = (
        make_processor().preprocess(image, overrides, "image") for overrides in ({}, {"do_image_splitting": False})
    )

    assert (len(default.patch_grids), len(single.patch_grids)) == (7, 1)
    assert default.cache_key != single.cache_key


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"max_image_size": {"longest_edge": 64}},
            "tiles of 64 pixels, but this model reads tiles of 32 x 32",
        ),
        ({"size": {"longest_edge": 5 * TILE}}, "none for row 1, column 5"),
        ({"size": {"shortest_edge": 5}}, "cannot be processed with"),
        ({"tiles": 3}, "mm_processor_kwargs has 'tiles'"),
    ],
)
def test_unsupported_options_are_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        make_processor().preprocess(make_image(90, 60), overrides, "image")


def test_too_many_tokens_are_refused_before_the_image_is_resized() -> None:
    with pytest.raises(InputTooLong, match=r"becomes \d{7} tokens.*lower size in mm_processor_kwargs"):
        make_processor().preprocess(make_image(30, 30), {"size": {"height": 10**4, "width": 10**4}}, "image")
