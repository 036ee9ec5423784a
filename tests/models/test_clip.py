"""CLIP equals Transformers: texts, images, and both in one batch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from cenote import LLM, PoolerConfig
from cenote.errors import BadRequest, InputTooLong, Unsupported
from cenote.models.architecture import HFConfig
from cenote.models.clip import clip
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.models.parity import opened
from tests.models.two_towers import (
    IMAGES,
    MIXED,
    TEXT,
    VISION,
    Reference,
    assert_same,
    image_message,
    prompt,
    save,
    vectors,
)
from tests.tiny import TEXTS, change_config

NUM_PATCHES = (28 // 4) ** 2  # more than a text may have tokens


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    config = CLIPConfig(text_config=dict(TEXT), vision_config=VISION | {"image_size": 28}, projection_dim=20)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    return save(tmp_path_factory.mktemp("clip"), config, CLIPModel, processor)


@pytest.fixture(scope="module")
def llm(reference: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(reference.folder)


def test_texts_have_the_embeddings_of_transformers(reference: Reference, llm: LLM) -> None:
    assert_same(vectors(llm, TEXTS), [reference.vector(text) for text in TEXTS])
    assert llm.model_config.embedding_size == 20
    assert llm.model_config.max_model_len == 24


def test_texts_and_images_share_a_batch(reference: Reference, llm: LLM) -> None:
    assert_same(vectors(llm, MIXED), [reference.vector(each) for each in MIXED])
    assert_same(vectors(llm, IMAGES), [reference.vector(each) for each in IMAGES])


def test_prompt_embeds_share_a_batch_with_images(reference: Reference) -> None:
    table = reference.model.text_model.embeddings.token_embedding.weight
    ready = {"prompt_embeds": table[reference.ids(TEXTS[0])].clone()}

    with opened(reference.folder, enable_prompt_embeds=True) as llm:
        inputs = [prompt(IMAGES[0]), ready, TEXTS[1]]
        found = [output.outputs.embedding for output in llm.embed(inputs, use_tqdm=False)]

    assert_same(torch.tensor(found), [reference.vector(each) for each in (IMAGES[0], TEXTS[0], TEXTS[1])])


def test_an_image_counts_as_many_tokens_as_the_tower_has_positions(llm: LLM) -> None:
    (found,) = llm.embed(prompt(IMAGES[0]), use_tqdm=False)

    assert len(found.prompt_token_ids) == NUM_PATCHES + 1


def test_token_and_patch_embeddings_share_the_space(reference: Reference, llm: LLM) -> None:
    inputs = [prompt(IMAGES[0]), TEXTS[0]]
    image, text = (found.outputs.data for found in llm.encode(inputs, pooling_task="token_embed", use_tqdm=False))

    assert image.shape == (NUM_PATCHES + 1, 20) and text.shape == (len(reference.ids(TEXTS[0])), 20)
    model = reference.model
    with torch.inference_mode():
        seen = model.vision_model(**reference.processor(IMAGES[:1], return_tensors="pt")).last_hidden_state[0]
        rows = normalize(model.visual_projection(model.vision_model.post_layernorm(seen)), dim=-1)
    torch.testing.assert_close(image, rows.roll(-1, dims=0), rtol=0, atol=1e-4)  # the CLS token comes last
    torch.testing.assert_close(text[-1], reference.vector(TEXTS[0]), rtol=0, atol=1e-4)


def test_a_text_is_scored_against_images_and_texts(reference: Reference, llm: LLM) -> None:
    documents = [{"content": image_message(image)[0]["content"]} for image in IMAGES[:2]]
    expected = [float(reference.vector(TEXTS[0]) @ reference.vector(each)) for each in (*IMAGES[:2], TEXTS[4])]

    actual = [found.outputs.score for found in llm.score(TEXTS[0], [*documents, TEXTS[4]], use_tqdm=False)]

    assert actual == pytest.approx(expected, abs=1e-4)


def test_a_message_of_nothing_but_an_image_is_that_image(reference: Reference, llm: LLM) -> None:
    reply = make_client(llm).post("/v1/embeddings", json={"messages": image_message(IMAGES[2])})

    assert reply.status_code == 200, reply.text
    assert_same(torch.tensor([reply.json()["data"][0]["embedding"]]), [reference.vector(IMAGES[2])])
    assert reply.json()["usage"]["prompt_tokens"] == NUM_PATCHES + 1


def test_a_text_message_is_embedded_as_its_text(reference: Reference, llm: LLM) -> None:
    body = {"messages": [{"role": "user", "content": TEXTS[0]}]}
    reply = make_client(llm).post("/v1/embeddings", json=body)

    assert reply.status_code == 200, reply.text
    assert_same(torch.tensor([reply.json()["data"][0]["embedding"]]), [reference.vector(TEXTS[0])])


def test_words_beside_an_image_are_refused(llm: LLM) -> None:
    words = "CLIP accepts text-only or image-only inputs, not both! You must pass an image with an empty token prompt."
    with pytest.raises(Unsupported, match=words):
        llm.embed({"prompt": "a cat", "multi_modal_data": {"image": IMAGES[0]}}, use_tqdm=False)
    reply = make_client(llm).post("/v1/embeddings", json={"messages": image_message(IMAGES[0], "a cat")})
    assert reply.status_code == 400 and words in reply.json()["error"]["message"]


def test_a_text_longer_than_the_table_of_positions_is_refused_or_cut(reference: Reference, llm: LLM) -> None:
    text = " ".join(["cat dog bird"] * 10)
    with pytest.raises(InputTooLong, match="24 tokens"):
        llm.embed(text, use_tqdm=False)

    cut = vectors(llm, [text], tokenization_kwargs={"truncate_prompt_tokens": -1})

    assert_same(cut, [reference.vector(" ".join(text.split()[:22]))])  # its last token is still the end of text


def test_an_image_is_never_split_where_long_texts_are(reference: Reference) -> None:
    text = " ".join(["cat dog bird"] * 10)
    with opened(reference.folder, pooler_config=PoolerConfig(enable_chunked_processing=True)) as llm:
        found = vectors(llm, [IMAGES[0], text, TEXTS[0]])

    assert_same(found[[0, 2]], [reference.vector(IMAGES[0]), reference.vector(TEXTS[0])])
    assert found[1].norm().item() == pytest.approx(1.0, abs=1e-4)


def test_a_size_that_the_tower_does_not_have_is_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="becomes 32 x 32 pixels, but this model reads 28 x 28"):
        llm.embed(
            {
                "prompt": "",
                "multi_modal_data": {"image": IMAGES[0]},
                "mm_processor_kwargs": {"crop_size": {"height": 32, "width": 32}},
            },
            use_tqdm=False,
        )


def test_files_of_older_versions_are_supported(reference: Reference, tmp_path: Any) -> None:
    for file in reference.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    halves = json.loads((reference.folder / "config.json").read_text())
    text, vision = halves["text_config"], halves["vision_config"]
    wrong = {"num_hidden_layers": 12, "hidden_size": 512}
    change_config(
        tmp_path,
        text_config=text | wrong,
        text_config_dict=text,
        vision_config=vision | wrong,
        vision_config_dict=vision,
    )
    older = {"size": 28, "crop_size": 28, "resample": 3, "do_center_crop": True, "feature_extractor_type": "CLIP"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(older))
    (tmp_path / "processor_config.json").unlink(missing_ok=True)

    with opened(tmp_path) as llm:
        assert_same(vectors(llm, MIXED[:2]), [reference.vector(each) for each in MIXED[:2]])


def test_keys_that_are_left_out_mean_what_they_mean_to_transformers() -> None:
    actual, expected = clip(HFConfig({"text_config": {}, "vision_config": {}})), CLIPConfig()

    assert actual.vision is not None and actual.projected_size == expected.projection_dim
    assert actual.backbone.vocab_size == expected.text_config.vocab_size
    assert actual.backbone.activation == expected.text_config.hidden_act
    assert actual.backbone.num_heads == expected.text_config.num_attention_heads
    assert actual.vision.num_layers == expected.vision_config.num_hidden_layers
    assert actual.vision.image_spec.patch_size == expected.vision_config.patch_size
