"""Images in the methods of `LLM`: every accepted form, with texts and with token ids."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote import LLM, PoolingParams
from cenote.errors import BadRequest, InputTooLong, Unsupported
from tests.api.image_helpers import CAT, DOG, data_uri, save_tiny_vl_reranker
from tests.factories import LLMFactory
from tests.inputs.media.image_server import PNG, PRIVATE, Server
from tests.models.tiny_qwen3_vl import IMAGE, save_tiny_qwen3_vl


@pytest.fixture(scope="module")
def llm(shared_llm: LLMFactory) -> LLM:
    return shared_llm(save_tiny_qwen3_vl, limit_mm_per_prompt={"image": 3})


def embed_prompt(llm: LLM, prompt: Any) -> Any:
    return np.stack([output.outputs.data.numpy() for output in llm.embed(prompt, use_tqdm=False)])


def with_image(text: Any, image: Any, **kwargs: Any) -> dict[str, Any]:
    return {
        "prompt" if isinstance(text, str) else "prompt_token_ids": text,
        "multi_modal_data": {"image": image},
        **kwargs,
    }


def test_an_image_is_the_same_in_every_form(llm: LLM, tmp_path: Path) -> None:
    CAT.save(tmp_path / "cat.png")
    file = io.BytesIO()
    CAT.save(file, "PNG")
    forms = [
        tmp_path / "cat.png",
        str(tmp_path / "cat.png"),
        file.getvalue(),
        data_uri(CAT),
        np.asarray(CAT),
        [CAT],
        (CAT,),
    ]

    embeddings = embed_prompt(llm, [with_image(f"{IMAGE}the cat", form) for form in forms])

    expected = embed_prompt(llm, with_image(f"{IMAGE}the cat", CAT))
    np.testing.assert_allclose(embeddings, np.repeat(expected, len(forms), axis=0), atol=1e-5)
    assert np.abs(expected - embed_prompt(llm, with_image(f"{IMAGE}the cat", DOG))).max() > 0.01


@pytest.fixture(scope="module")
def image_url() -> Iterator[str]:
    server = Server(PRIVATE)
    yield f"http://{PRIVATE}:{server.server_port}/good"
    server.close()


def test_http_image_urls_are_fetched_offline(llm: LLM, image_url: str) -> None:
    expected = embed_prompt(llm, with_image(f"{IMAGE}the cat", PNG))

    np.testing.assert_allclose(embed_prompt(llm, with_image(f"{IMAGE}the cat", image_url)), expected, atol=1e-5)


def test_the_hosts_of_image_urls_can_be_restricted_offline(tmp_path: Path, image_url: str) -> None:
    save_tiny_qwen3_vl(tmp_path)

    with (
        LLM(str(tmp_path), dtype="float32", device="cpu", allowed_media_domains=["pictures.example"]) as llm,
        pytest.raises(BadRequest, match=r"LLM\(allowed_media_domains=\[\.\.\.\]\)"),
    ):
        llm.embed(with_image(f"{IMAGE}the cat", image_url), use_tqdm=False)


def test_token_ids_may_contain_image_placeholders(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(f"{IMAGE}the cat{IMAGE}").ids
    keys = {"multi_modal_uuids": {"image": ["a", "b"]}, "cache_salt": "salt"}

    embeddings = embed_prompt(llm, with_image(ids, [CAT, DOG], **keys))

    np.testing.assert_allclose(
        embeddings, embed_prompt(llm, with_image(f"{IMAGE}the cat{IMAGE}", [CAT, DOG])), atol=1e-5
    )
    (output,) = llm.embed(with_image(ids, [CAT, DOG]), use_tqdm=False)
    assert len(output.prompt_token_ids) > len(ids)


def test_a_prompt_may_have_its_own_mm_processor_kwargs(llm: LLM) -> None:
    prompts = [
        with_image(IMAGE, CAT),
        with_image(IMAGE, CAT, mm_processor_kwargs={"max_pixels": 256}),
    ]

    default, smaller = (len(output.prompt_token_ids) for output in llm.embed(prompts, use_tqdm=False))

    assert smaller < default


def test_score_takes_content_parts_and_mm_processor_kwargs(llm: LLM) -> None:
    cat, same = ({"content": [{"type": kind, kind: image}]} for kind, image in (("image_pil", CAT), ("image", CAT)))
    dog = {"content": [{"type": "text", "text": "the dog"}, {"type": "image_url", "image_url": {"url": data_uri(DOG)}}]}
    params = PoolingParams(extra_kwargs={"mm_processor_kwargs": {"max_pixels": 256}})

    scores = [output.outputs.score for output in llm.score(cat, [same, dog, "the cat"], use_tqdm=False)]
    smaller, default = (llm.score(cat, dog, use_tqdm=False, **kwargs)[0] for kwargs in ({"pooling_params": params}, {}))

    assert scores[0] == pytest.approx(1, abs=1e-5) and max(scores[1:]) < 0.999
    assert len(smaller.prompt_token_ids) < len(default.prompt_token_ids)


def test_a_classifier_accepts_images(tmp_path: Path) -> None:
    save_tiny_vl_reranker(tmp_path)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as classifier:
        cat, dog = classifier.classify([with_image(IMAGE, CAT), with_image(IMAGE, DOG)], use_tqdm=False)

    assert sum(cat.outputs.probs) == pytest.approx(1, abs=1e-5)
    assert np.abs(np.array(cat.outputs.probs) - dog.outputs.probs).max() > 1e-3


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [
        (with_image(IMAGE, b"no image"), BadRequest, r"multi_modal_data\.image: .*not an image of a known format"),
        (with_image(IMAGE, "nowhere.png"), BadRequest, r"multi_modal_data\.image: "),
        (with_image(IMAGE * 2, [CAT, object()]), BadRequest, r"multi_modal_data\.image\[1\]: .*got object"),
        (with_image("the cat", CAT), BadRequest, "0 placeholders .*, but 1 images were given"),
        (with_image(IMAGE * 2, CAT), BadRequest, "2 placeholders .*, but 1 images were given"),
        (with_image(IMAGE * 4, [CAT] * 4), BadRequest, r"At most 3 image\(s\) may be provided in one prompt, got 4"),
        (with_image(IMAGE, CAT, mm_processor_kwargs={"colour": 1}), BadRequest, "has 'colour'"),
        (with_image(IMAGE + "cat " * 600, CAT), InputTooLong, "512"),
        ({"prompt": "a", "multi_modal_data": {"video": b""}}, Unsupported, "got 'video'"),
    ],
)  # fmt: skip
def test_an_error_names_the_parameter_it_is_about(llm: LLM, prompt: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as refused:
        llm.embed(["fine", prompt], use_tqdm=False)

    assert getattr(refused.value, "index", None) in (1, None)


def test_a_text_next_to_an_image_is_part_of_the_prompt(llm: LLM) -> None:
    image, text = {"type": "image_pil", "image_pil": CAT}, {"type": "text", "text": "the cat"}

    both, parts, alone = (
        output.outputs.score
        for output in llm.score(
            "the cat", [{"image": CAT, "text": "the cat"}, {"content": [image, text]}, "the cat"], use_tqdm=False
        )
    )

    assert both == pytest.approx(parts, abs=1e-5)
    assert abs(both - alone) > 1e-3
