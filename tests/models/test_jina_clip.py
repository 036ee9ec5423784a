"""jina-clip v1 and v2 equal their published arithmetic: texts, images, and both in one batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from cenote import LLM
from cenote.errors import LoadError, Unsupported
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.models.jina_clip import INSTRUCTION, TASK, TEXT_V1, TEXT_V2, VISION_V1, PlainModel, save_jina_clip
from tests.models.parity import opened
from tests.models.two_towers import IMAGES, MIXED, assert_same, image_message, make_image, prompt, vectors
from tests.tiny import TEXTS


@pytest.fixture(scope="module", params=[1, 2], ids=["v1", "v2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jina-clip")
    save_jina_clip(folder, request.param)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


def test_texts_and_images_have_the_embeddings_of_the_published_arithmetic(folder: Path, llm: LLM) -> None:
    plain = PlainModel(folder)

    assert_same(vectors(llm, TEXTS), [plain.vector(text) for text in TEXTS])
    assert_same(vectors(llm, IMAGES), [plain.vector(image) for image in IMAGES])


def test_texts_and_images_share_a_batch(folder: Path, llm: LLM) -> None:
    plain = PlainModel(folder)

    assert_same(vectors(llm, MIXED), [plain.vector(given) for given in MIXED])


@pytest.mark.parametrize("size", [(31, 34), (31, 36), (34, 31), (36, 31), (28, 31), (28, 33)])
def test_an_odd_margin_is_cropped_as_torchvision_does(folder: Path, llm: LLM, size: tuple[int, int]) -> None:
    image = make_image(*size, seed=7)

    assert_same(vectors(llm, [image]), [PlainModel(folder).vector(image)])


def test_patch_embeddings_precede_that_of_the_cls_token(folder: Path, llm: LLM) -> None:
    (found,) = llm.encode([prompt(IMAGES[0])], pooling_task="token_embed", use_tqdm=False)

    expected = normalize(PlainModel(folder).image(IMAGES[0]), dim=-1).roll(-1, dims=0)
    torch.testing.assert_close(found.outputs.data, expected, rtol=0, atol=1e-4)


def test_a_text_beside_an_image_is_refused(llm: LLM) -> None:
    with pytest.raises(Unsupported, match="jina-clip"):
        llm.embed({"prompt": "a cat", "multi_modal_data": {"image": IMAGES[0]}}, use_tqdm=False)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> tuple[PlainModel, LLM]:
    folder = tmp_path_factory.mktemp("jina-clip-v2")
    save_jina_clip(folder, 2)
    return PlainModel(folder), open_llm(folder)


def test_v2_has_smaller_sizes_for_texts_and_images(second: tuple[PlainModel, LLM]) -> None:
    plain, llm = second
    client = make_client(llm)

    for body, given in (({"input": TEXTS[0]}, TEXTS[0]), ({"messages": image_message(IMAGES[1])}, IMAGES[1])):
        reply = client.post("/v1/embeddings", json={**body, "dimensions": 8})
        found = torch.tensor([reply.json()["data"][0]["embedding"]])
        assert_same(found, [normalize(plain.vector(given)[:8], dim=-1)])


def test_the_instruction_of_v2_is_used_if_a_request_names_its_task(second: tuple[PlainModel, LLM]) -> None:
    plain, llm = second

    found = vectors(llm, TEXTS[:2], prompt_name=TASK)

    assert_same(found, [plain.vector(INSTRUCTION + text) for text in TEXTS[:2]])
    assert_same(vectors(llm, TEXTS[:1]), [plain.vector(TEXTS[0])])


@pytest.mark.parametrize(
    ("version", "changes", "message"),
    [
        (1, {"vision_config": VISION_V1 | {"subln": False}}, "vision_config: subln=False is not supported"),
        (1, {"vision_config": VISION_V1 | {"pt_hw_seq_len": 4}}, "vision_config: pt_hw_seq_len=4 .* expected 7"),
        (1, {"vision_config": VISION_V1 | {"ls_init_value": 0.1}}, "vision_config: ls_init_value=0.1"),
        (1, {"text_config": TEXT_V1 | {"pooler_type": None}}, "text_config: pooler_type='cls_pooler' .*'mean_pooler'"),
        (
            1,
            {"text_config": TEXT_V1 | {"hf_model_name_or_path": "some/bert"}},
            "'some/bert' is not supported; expected",
        ),
        (
            2,
            {"text_config": TEXT_V2 | {"default_lora_task": "separation"}},
            "no adapter for .*'separation'; found: ret",
        ),
        (2, {"add_projections": True}, "config.json: add_projections=True is not supported"),
        (2, {"truncate_dim": 16}, "config.json: truncate_dim=16 is not supported"),
    ],
)
def test_other_variants_are_refused_by_name(tmp_path: Path, version: int, changes: Any, message: str) -> None:
    save_jina_clip(tmp_path, version, **changes)

    with pytest.raises(LoadError, match=message):
        opened(tmp_path).close()


def test_padding_instead_of_cropping_is_refused(tmp_path: Path) -> None:
    save_jina_clip(tmp_path, 1)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"resize_mode": "longest"}))

    with pytest.raises(LoadError, match="preprocessor_config.json: resize_mode='longest' is not supported"):
        opened(tmp_path).close()


def test_a_custom_transformer_of_another_model_is_refused(tmp_path: Path) -> None:
    save_jina_clip(tmp_path, 1, architectures=["CLIPModel"])

    with pytest.raises(LoadError, match=r"modules.json: module type 'custom_st.Transformer' is not supported"):
        opened(tmp_path).close()
