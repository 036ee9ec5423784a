"""gme-Qwen2-VL equals Transformers' Qwen2-VL with the prompt and the image sizes of its published code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM
from cenote.errors import LoadError
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.gme import Gme, save_gme
from tests.models.qwen_vl import PLACEHOLDER, make_image

TEXTS = ["how big is the old river?", "a red bird", "the cat is in the city"]
TASK = "find an image that matches the text."
# within the limits, too large, too small, and one whose sides are rounded before it is shrunk
IMAGES = [make_image(43, 29), make_image(203, 111, seed=1), make_image(17, 9, seed=2), make_image(90, 61, seed=3)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Gme:
    return save_gme(tmp_path_factory.mktemp("gme"))


@pytest.fixture(scope="module")
def llm(reference: Gme, open_llm: LLMFactory) -> LLM:
    return open_llm(reference.folder)


def embed(llm: LLM, inputs: list[Any]) -> list[Tensor]:
    return [torch.tensor(output.outputs.embedding) for output in llm.embed(inputs, use_tqdm=False)]


def with_image(prompt: str, image: Image.Image) -> dict[str, Any]:
    return {"prompt": prompt, "multi_modal_data": {"image": image}}


def test_a_text_is_written_into_the_prompt_of_the_model(llm: LLM, reference: Gme) -> None:
    for found, text in zip(embed(llm, TEXTS), TEXTS, strict=True):
        assert_close(found, reference.embed(text), atol=1e-4, rtol=0)


def test_the_prompt_of_a_request_replaces_the_system_message(llm: LLM, reference: Gme) -> None:
    (found,) = llm.engine.pool_sync(PoolRequest(task="embed", inputs=[TEXTS[0]], prompt=TASK))

    assert_close(torch.from_numpy(found.data), reference.embed(TEXTS[0], instruction=TASK), atol=1e-4, rtol=0)


def test_a_prompt_that_is_already_complete_is_not_changed(llm: LLM, reference: Gme) -> None:
    prompt = f"<|im_start|>system\n{TASK}<|im_end|>\n<|im_start|>user\n{PLACEHOLDER}a bird<|im_end|>\n"

    (found,) = embed(llm, [with_image(prompt, IMAGES[0])])

    assert_close(found, reference.embed_prompt(prompt, IMAGES[0]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: "x".join(map(str, image.size)))
def test_an_image_has_the_size_and_the_positions_of_the_published_code(
    llm: LLM, reference: Gme, image: Image.Image
) -> None:
    alone, with_text = embed(llm, [with_image("", image), with_image(f"{PLACEHOLDER}a red bird", image)])

    assert_close(alone, reference.embed(image=image), atol=1e-4, rtol=0)
    assert_close(with_text, reference.embed("a red bird", image), atol=1e-4, rtol=0)


def test_a_conversation_gives_the_same_as_its_text_and_image(llm: LLM, reference: Gme) -> None:
    parts = [{"type": "text", "text": "a red bird"}, {"type": "image_pil", "image_pil": IMAGES[0]}]
    messages = [{"role": "system", "content": TASK}, {"role": "user", "content": parts}]
    inputs = [Conversation(messages), Conversation([{"role": "user", "content": "a red bird"}])]

    fused, text = llm.engine.pool_sync(PoolRequest(task="embed", inputs=inputs))

    assert_close(torch.from_numpy(fused.data), reference.embed("a red bird", IMAGES[0], TASK), atol=1e-4, rtol=0)
    assert_close(torch.from_numpy(text.data), reference.embed("a red bird"), atol=1e-4, rtol=0)


def test_a_text_is_scored_against_an_image(llm: LLM, reference: Gme) -> None:
    document = {"content": [{"type": "image_pil", "image_pil": IMAGES[0]}, {"type": "text", "text": "a bird"}]}

    (output,) = llm.score(TEXTS[0], document, use_tqdm=False)

    expected = reference.embed(TEXTS[0]) @ reference.embed("a bird", IMAGES[0])
    assert output.outputs.score == pytest.approx(expected.item(), abs=1e-4)


def test_it_is_known_by_its_code_where_there_is_no_module_list(reference: Gme, tmp_path: Path) -> None:
    model = save_gme(tmp_path)
    (tmp_path / "modules.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    code = {"AutoModel": "modeling_gme_qwen2vl.GmeQwen2VL", "AutoConfig": "modeling_gme_qwen2vl.GmeQwen2VLConfig"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": code}))

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        (found,) = embed(llm, TEXTS[:1])

    assert_close(found, model.embed(TEXTS[0]), atol=1e-4, rtol=0)


def test_its_module_with_another_model_is_refused(tmp_path: Path) -> None:
    save_gme(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen2_5_vl"}))

    with pytest.raises(LoadError, match=r"config\.json.*MultiModalTransformer in modules\.json is supported only with"):
        LLM(str(tmp_path), device="cpu")
