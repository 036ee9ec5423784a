"""LLaVA-NeXT (Llama and Mistral) equals Transformers on tiny random checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    MistralConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.llava_next.image_processing_pil_llava_next import LlavaNextImageProcessorPil

from cenote import LLM, PoolingParams
from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest, InputTooLong, LoadError
from cenote.inputs.images.llava_next import LlavaNextImageProcessor
from cenote.models.architecture import HFConfig
from cenote.models.image_spec import ProcessorFiles
from cenote.models.llava_next import llava_next
from tests.factories import LLMFactory
from tests.models.qwen_vl import make_image
from tests.tiny import DECODER, randomize, save_tokenizer

TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "image_token": "<image>"}
SIDE, PATCH = 28, 7
PINPOINTS = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
SIZES = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
VISION: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 2}
VISION |= {"image_size": SIDE, "patch_size": PATCH}
TEXT = DECODER | {"max_position_embeddings": 400}
RAW = PoolingParams(use_activation=False)
SQUARE, WIDE, TALL, SMALL = make_image(60, 57), make_image(130, 31, 1), make_image(41, 99, 2), make_image(9, 5, 3)
INPUTS: list[tuple[str, list[Image.Image]]] = [
    ("the cat is in the city", []),
    ("<image>", [SQUARE]),
    ("<image> a red bird", [WIDE]),
    ("the old <image> river <image> in berlin", [TALL, SMALL]),
    ("how big is it? <image>", [SQUARE]),
]


class Reference:
    def __init__(self, folder: Path, text: Any) -> None:
        self.folder = folder
        tokenizer = save_tokenizer(folder, TOKENS, max_length=400, two_types=False)
        config = LlavaNextConfig(
            vision_config=CLIPVisionConfig(**VISION),
            text_config=text,
            image_grid_pinpoints=PINPOINTS,
            image_token_index=tokenizer.token_to_id("<image>"),
        )
        self.model = LlavaNextForConditionalGeneration(config).eval().requires_grad_(False)
        randomize(self.model)
        self.model.save_pretrained(folder)
        images = LlavaNextImageProcessorPil(**SIZES, image_grid_pinpoints=PINPOINTS)
        images.save_pretrained(folder)
        self.processor = LlavaNextProcessor(
            images,
            PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **TOKENS),
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )

    def states(self, text: str, images: Sequence[Image.Image]) -> Tensor:
        read = self.processor(text=text, images=list(images) or None, return_tensors="pt")
        read.pop("token_type_ids", None)
        with torch.inference_mode():
            return self.model.model(**read).last_hidden_state[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("llava_llama"), LlamaConfig(**TEXT))


@pytest.fixture(scope="module")
def llm(llama: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(llama.folder, limit_mm_per_prompt={"image": 2})


def prompts() -> list[Any]:
    return [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in INPUTS]


def test_every_token_of_texts_and_images_in_one_batch_equals_transformers(llm: LLM, llama: Reference) -> None:
    actual = llm.encode(prompts(), pooling_task="token_embed", pooling_params=RAW, use_tqdm=False)

    for (text, images), mine in zip(INPUTS, actual, strict=True):
        assert_close(mine.outputs.data, llama.states(text, images), atol=1e-4, rtol=0)


def test_the_last_token_is_the_embedding(llm: LLM, llama: Reference) -> None:
    actual = llm.embed(prompts(), use_tqdm=False)

    for (text, images), mine in zip(INPUTS, actual, strict=True):
        expected = F.normalize(llama.states(text, images)[-1], dim=0)
        assert_close(torch.tensor(mine.outputs.embedding), expected, atol=1e-5, rtol=0)


def test_a_mistral_under_the_older_names_equals_transformers(tmp_path: Path) -> None:
    reference = Reference(tmp_path, MistralConfig(**TEXT | {"sliding_window": None}))
    file = tmp_path / "model.safetensors"
    older = {"model.language_model.": "language_model.model.", "lm_head": "language_model.lm_head", "model.": ""}
    save_file({renamed(name, older): tensor.clone() for name, tensor in load_file(file).items()}, file)

    with LLM(str(tmp_path), dtype="float32", device="cpu", limit_mm_per_prompt={"image": 2}) as llm:
        actual = llm.encode(prompts(), pooling_task="token_embed", pooling_params=RAW, use_tqdm=False)

    for (text, images), mine in zip(INPUTS, actual, strict=True):
        assert_close(mine.outputs.data, reference.states(text, images), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [(60, 57), (130, 31), (41, 99), (9, 5), (56, 56), (300, 299), (28, 28), (1, 40)])
def test_tiles_have_the_pixels_and_the_tokens_of_transformers(size: tuple[int, int], llama: Reference) -> None:
    image, architecture = (
        make_image(*size),
        llava_next(HFConfig(json.loads((llama.folder / "config.json").read_text()))),
    )
    assert architecture.vision is not None
    files = ProcessorFiles(json.loads((llama.folder / "preprocessor_config.json").read_text()))
    reader = LlavaNextImageProcessor(architecture.vision.image_spec, files, {"<image>": 3}.get, 400, {})

    read = reader.preprocess(image, {}, "image")

    expected = llama.processor(text="<image>", images=image, return_tensors="pt")
    assert_close(
        normalize_patches(torch.from_numpy(read.patches), read.normalization),
        torch.cat([F.unfold(tile[None], PATCH, stride=PATCH)[0].T for tile in expected["pixel_values"][0]]),
        atol=1e-5,
        rtol=0,
    )
    assert len(read.token_ids) == expected["input_ids"].shape[1]


def test_an_image_of_more_tokens_than_the_model_reads_is_refused_before_it_is_cut(llama: Reference) -> None:
    with (
        LLM(str(llama.folder), dtype="float32", device="cpu", max_model_len=40) as short,
        pytest.raises(InputTooLong, match="60 x 57 pixels becomes 88 tokens, but this model reads at most 40"),
    ):
        short.embed({"prompt": "<image>", "multi_modal_data": {"image": SQUARE}}, use_tqdm=False)


@pytest.mark.parametrize("size", [[30, 28], [28000, 28000]])
def test_sizes_that_are_no_tiles_are_refused(size: list[int], llm: LLM) -> None:
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": SQUARE}}

    with pytest.raises(BadRequest, match=f"{size[0]} x 28.* pixels are not 1 to 64 tiles of 28 x 28"):
        llm.embed({**prompt, "mm_processor_kwargs": {"image_grid_pinpoints": [size]}}, use_tqdm=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy is 'full'"),
        ({"vision_feature_layer": [-2, -5]}, r"vision_feature_layer is \[-2, -5\]"),
        ({"vision_feature_layer": -9}, "invalid feature layer -9; the tower has 4 layers"),
        ({"text_config": {"model_type": "opt"}}, "text_config.model_type is 'opt'"),
    ],
)
def test_unsupported_config_values_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(LoadError, match=message):
        llava_next(HFConfig({"vision_config": VISION, "text_config": {}, **changes}))


def renamed(name: str, changes: dict[str, str]) -> str:
    start = next((start for start in changes if name.startswith(start)), "")
    return changes.get(start, "") + name.removeprefix(start)
