"""nomic-embed-vision equals its published arithmetic; it reads images only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from cenote import LLM
from cenote.errors import LoadError, Unsupported
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.models.nomic_vision import GRID, PlainModel, save_nomic_vision
from tests.models.parity import opened
from tests.models.two_towers import IMAGES, assert_same, image_message, prompt, vectors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nomic-embed-vision")
    save_nomic_vision(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


def test_an_image_has_the_embedding_of_the_published_arithmetic(folder: Path, llm: LLM) -> None:
    plain = PlainModel(folder)

    assert_same(vectors(llm, IMAGES), [plain.vector(image) for image in IMAGES])


def test_patch_embeddings_precede_that_of_the_cls_token(folder: Path, llm: LLM) -> None:
    (found,) = llm.encode([prompt(IMAGES[0])], pooling_task="token_embed", use_tqdm=False)

    expected = normalize(PlainModel(folder).states(IMAGES[0]), dim=-1).roll(-1, dims=0)
    assert found.outputs.data.shape == (GRID**2 + 1, 48)
    torch.testing.assert_close(found.outputs.data, expected, rtol=0, atol=1e-4)


def test_positions_are_scaled_to_the_grid_of_the_pretraining(tmp_path: Path) -> None:
    save_nomic_vision(tmp_path, ref_feat_shape=[16, 16])

    with opened(tmp_path) as llm:
        assert_same(vectors(llm, IMAGES[:2]), [PlainModel(tmp_path).vector(image) for image in IMAGES[:2]])


def test_images_are_scored_against_each_other(folder: Path, llm: LLM) -> None:
    first, second = ({"content": image_message(image)[0]["content"]} for image in IMAGES[:2])
    plain = PlainModel(folder)

    (found,) = llm.score(first, [second], use_tqdm=False)

    assert found.outputs.score == pytest.approx(float(plain.vector(IMAGES[0]) @ plain.vector(IMAGES[1])), abs=1e-4)


@pytest.mark.parametrize("texts", [["a cat"], ["a cat", "a dog"], [{"prompt_token_ids": [0]}], [""]])
def test_texts_are_refused_with_the_model_that_embeds_them(llm: LLM, texts: list[str]) -> None:
    with pytest.raises(Unsupported, match="reads images only; embed texts with nomic-ai/nomic-embed-text of the same"):
        llm.embed(texts, use_tqdm=False)


def test_a_text_over_http_is_a_bad_request(llm: LLM) -> None:
    client = make_client(llm)

    for route, body in (("/v1/embeddings", {"input": "a cat"}), ("/tokenize", {"prompt": "a cat"})):
        reply = client.post(route, json=body)
        assert reply.status_code == 400 and "nomic-embed-text" in reply.text


def test_a_text_beside_an_image_is_refused(llm: LLM) -> None:
    with pytest.raises(Unsupported, match="image-only inputs"):
        llm.embed({"prompt": "a cat", "multi_modal_data": {"image": IMAGES[0]}}, use_tqdm=False)


@pytest.mark.parametrize(
    ("key", "value"), [("register_tokens", 4), ("prenorm", False), ("activation_function", "gelu")]
)
def test_other_variants_of_the_encoder_are_refused_by_name(tmp_path: Path, key: str, value: object) -> None:
    save_nomic_vision(tmp_path, **{key: value})

    with pytest.raises(LoadError, match=f"config.json.*{key}={value!r}.* not supported"):
        opened(tmp_path).close()
