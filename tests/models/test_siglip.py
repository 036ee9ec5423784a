"""SigLIP and SigLIP 2 equal Transformers: texts, images, and both in one batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize
from transformers import Siglip2Config, Siglip2Model, SiglipConfig, SiglipModel
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from cenote import LLM
from cenote.errors import Unsupported
from cenote.models.architecture import HFConfig
from cenote.models.siglip import siglip, siglip2
from tests.factories import LLMFactory
from tests.models.parity import opened
from tests.models.two_towers import (
    IMAGES,
    MIXED,
    TEXT,
    VISION,
    Reference,
    assert_same,
    make_image,
    prompt,
    save,
    vectors,
)
from tests.tiny import TEXTS

# what comes out of both towers is as wide as the states of the other
TEXT_CONFIG = TEXT | {"projection_size": 40}


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    config = SiglipConfig(text_config=TEXT_CONFIG, vision_config=VISION | {"image_size": 28})
    processor = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    return save(tmp_path_factory.mktemp("siglip"), config, SiglipModel, processor)


@pytest.fixture(scope="module")
def flexible(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    config = Siglip2Config(text_config=TEXT_CONFIG, vision_config=VISION | {"num_patches": 16})
    processor = Siglip2ImageProcessorPil(patch_size=4, max_num_patches=50)
    return save(tmp_path_factory.mktemp("siglip2"), config, Siglip2Model, processor)


@pytest.fixture(scope="module")
def llm(fixed: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(fixed.folder)


@pytest.fixture(scope="module")
def flexible_llm(flexible: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(flexible.folder)


def test_texts_have_the_embeddings_of_transformers_padded_as_the_model_was_trained(fixed: Reference, llm: LLM) -> None:
    padded = [fixed.vector(text, pad_to=24) for text in TEXTS]

    assert_same(vectors(llm, TEXTS), padded)
    assert_same(vectors(llm, TEXTS[:1]), padded[:1])
    assert_same(vectors(llm, TEXTS, tokenization_kwargs={"padding": "max_length", "max_length": 24}), padded)
    assert llm.model_config.embedding_size == 40
    assert llm.model_config.max_model_len == 24


@pytest.mark.parametrize("padding", [False, "do_not_pad"])
def test_a_request_may_turn_padding_off(padding: bool | str, fixed: Reference, llm: LLM) -> None:
    short = vectors(llm, TEXTS[:3], tokenization_kwargs={"padding": padding})

    assert_same(short, [fixed.vector(text) for text in TEXTS[:3]])
    assert (short - vectors(llm, TEXTS[:3])).abs().max() > 0.01  # padding tokens are attended to


def test_a_request_may_pad_to_another_length(fixed: Reference, llm: LLM) -> None:
    found = vectors(llm, TEXTS[:3], tokenization_kwargs={"padding": "max_length", "max_length": 20})

    assert_same(found, [fixed.vector(text, pad_to=20) for text in TEXTS[:3]])


def test_a_lower_limit_of_the_server_pads_to_that_limit(fixed: Reference) -> None:
    with opened(fixed.folder, max_model_len=16) as llm:
        assert_same(vectors(llm, TEXTS[:1]), [fixed.vector(TEXTS[0], pad_to=16)])


def test_texts_and_images_share_a_batch(fixed: Reference, llm: LLM) -> None:
    assert_same(vectors(llm, MIXED), [fixed.vector(each, pad_to=24) for each in MIXED])


def test_rows_of_an_image_are_its_patches_and_then_its_vector(fixed: Reference, llm: LLM) -> None:
    (found,) = llm.encode(prompt(IMAGES[0]), pooling_task="token_embed", use_tqdm=False)

    with torch.inference_mode():
        pixels = fixed.processor(IMAGES[:1], return_tensors="pt")
        patches = normalize(fixed.model.vision_model(**pixels).last_hidden_state[0], dim=-1)
    assert_same(found.outputs.data, [*patches, fixed.vector(IMAGES[0])])


def test_words_beside_an_image_are_refused(llm: LLM) -> None:
    with pytest.raises(Unsupported, match="SigLIP accepts text-only or image-only inputs, not both!"):
        llm.embed({"prompt": "a cat", "multi_modal_data": {"image": IMAGES[0]}}, use_tqdm=False)


def test_images_of_any_shape_share_a_batch_without_padding(flexible: Reference, flexible_llm: LLM) -> None:
    inputs = [*MIXED, make_image(400, 9, 5), make_image(8, 300, 6)]

    assert_same(vectors(flexible_llm, inputs), [flexible.vector(each, pad_to=24) for each in inputs])


def test_an_image_of_any_shape_counts_the_patches_that_it_has(flexible: Reference, flexible_llm: LLM) -> None:
    images = [IMAGES[1], make_image(400, 9, 5)]
    shapes = flexible.processor(images, return_tensors="pt")["spatial_shapes"]

    found = flexible_llm.embed([prompt(image) for image in images], use_tqdm=False)

    assert [len(each.prompt_token_ids) - 1 for each in found] == shapes.prod(-1).tolist() == [49, 45]


def test_a_request_may_ask_for_fewer_patches(flexible: Reference, flexible_llm: LLM) -> None:
    few = {**prompt(IMAGES[0]), "mm_processor_kwargs": {"max_num_patches": 12}}
    coarse = Reference(flexible.folder, flexible.model, Siglip2ImageProcessorPil(patch_size=4, max_num_patches=12))

    (found,) = flexible_llm.embed(few, use_tqdm=False)

    assert_same(torch.tensor([found.outputs.embedding]), [coarse.vector(IMAGES[0])])


def test_keys_that_are_left_out_mean_what_they_mean_to_transformers() -> None:
    empty = HFConfig({"text_config": {}, "vision_config": {}})
    for actual, expected in ((siglip(empty), SiglipConfig()), (siglip2(empty), Siglip2Config())):
        assert actual.vision is not None and actual.projected_size == expected.text_config.projection_size
        assert actual.backbone.vocab_size == expected.text_config.vocab_size
        assert actual.backbone.num_learned_positions == expected.text_config.max_position_embeddings
        assert actual.backbone.norm_eps == expected.text_config.layer_norm_eps
        assert actual.vision.num_layers == expected.vision_config.num_hidden_layers
        assert actual.vision.image_spec.patch_size == expected.vision_config.patch_size
