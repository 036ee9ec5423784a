"""Llama Nemotron VL equals SigLIP and Llama of Transformers combined, on tiny random checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaModel, SiglipVisionConfig, SiglipVisionModel

from cenote import LLM
from cenote.engine.execution.input_packing import normalize_patches
from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.nemotron import NemotronImageProcessor, find_closest_aspect_ratio
from cenote.loading.checkpoint import find_checkpoint
from cenote.loading.hf_config import read_config
from cenote.loading.load import read_processor_files
from cenote.models.architecture import HFConfig
from cenote.models.nemotron_vl import nemotron_vl
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.qwen_vl import make_image
from tests.tiny import DECODER, change_config, randomize, save_tokenizer

TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>"}
TOKENS |= {"first": "<img>", "context": "<IMG_CONTEXT>", "last": "</img>"}
SIDE, PATCH, MOST = 32, 8, 4
VISION: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION |= {"image_size": SIDE, "patch_size": PATCH, "model_type": "siglip_vision_model"}
TEXT = DECODER | {"max_position_embeddings": 512, "pooling": "avg", "model_type": "llama_bidirec"}
LLAMA_TEMPLATE = "{% for message in messages %}<unk>{{ message.content }}{% endfor %}"
WHOLE, WIDE, TALL, LARGE = make_image(30, 27), make_image(70, 30, 1), make_image(20, 95, 2), make_image(200, 150, 3)


class Reference:
    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoint = folder, find_checkpoint(str(folder))
        self.vision = SiglipVisionModel(SiglipVisionConfig(**VISION)).eval()
        self.text = LlamaModel(LlamaConfig(**TEXT, attn_implementation="eager")).eval()
        self.mlp = nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 32), nn.GELU(), nn.Linear(32, 32))
        self.score = nn.Linear(32, 1, bias=False)
        for seed, module in enumerate((self.vision, self.text, self.mlp, self.score)):
            randomize(module, seed)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def pooled(self, text: str, images: Sequence[Image.Image] = (), most: int = MOST) -> Tensor:
        """Return the mean over all tokens of a text with <image> placeholders."""
        rows = []
        for image in images:
            pixels = torch.stack([tile_pixels(tile) for tile in tiles(image, most)])
            states = self.vision(pixel_values=pixels).last_hidden_state  # [tiles, 16, 24]
            rows += [self.mlp(shuffled(each)) for each in states]
            marks = "<IMG_CONTEXT>" * 4 * len(pixels)
            text = text.replace("<image>", f"<img>{marks}</img>", 1)
        ids = torch.tensor(self.tokenizer.encode(text).ids)
        embeds = self.text.embed_tokens(ids)
        if rows:
            embeds[ids == self.tokenizer.token_to_id("<IMG_CONTEXT>")] = torch.cat(rows)
        everything = torch.zeros(1, 1, len(ids), len(ids))
        return self.text(inputs_embeds=embeds[None], attention_mask=everything).last_hidden_state[0].mean(0)

    def vector(self, text: str, images: Sequence[Image.Image] = (), most: int = MOST) -> list[float]:
        with torch.no_grad():
            return F.normalize(self.pooled(text, images, most), dim=0).tolist()  # type: ignore[no-any-return]

    def judged(self, text: str, images: Sequence[Image.Image] = ()) -> float:
        with torch.no_grad():
            return float(self.score(self.pooled(text, images)).sigmoid())


def shuffled(states: Tensor) -> Tensor:
    """Merge squares of four patches into one row."""
    square = states.view(4, 4, 24)
    rows = [square[2 * y : 2 * y + 2, 2 * x : 2 * x + 2].reshape(-1) for y in range(2) for x in range(2)]
    return torch.stack(rows)


def tiles(image: Image.Image, most: int) -> list[Image.Image]:
    layouts = {(x, y) for n in range(1, most + 1) for x in range(1, n + 1) for y in range(1, n + 1) if x * y <= most}
    ratio, best = image.width / image.height, (0.0, (1, 1))
    for columns, rows in sorted(layouts, key=lambda each: each[0] * each[1]):
        share = min(columns * rows * SIDE**2 / (image.width * image.height), 0.6)
        fit = share * min(columns / rows / ratio, ratio / (columns / rows))
        best = (fit, (columns, rows)) if fit > best[0] else best
    columns, rows = best[1]
    whole = np.asarray(image.resize((columns * SIDE, rows * SIDE)))
    cut = [each for band in np.split(whole, rows) for each in np.split(band, columns, axis=1)]
    small = [] if len(cut) == 1 else [np.asarray(image.resize((SIDE, SIDE)))]
    return [Image.fromarray(each) for each in [*cut, *small]]


def tile_pixels(tile: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(tile)).permute(2, 0, 1) / 255 * 2 - 1


def save_embedder(folder: Path) -> Reference:
    save_tokenizer(folder, TOKENS, max_length=512, two_types=False)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": LLAMA_TEMPLATE}))
    config = {
        "architectures": ["LlamaNemotronVLModel"],
        "model_type": "llama_nemotron_vl",
        "vision_config": VISION,
        "llm_config": TEXT,
        "force_image_size": SIDE,
        "downsample_ratio": 0.5,
        "select_layer": -1,
        "ps_version": "v2",
        "max_dynamic_patch": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "processor_config.json").write_text(json.dumps({"max_input_tiles": MOST, "use_thumbnail": True}))
    made = Reference(folder)
    save_file(weights(made), folder / "model.safetensors")
    return made


def save_reranker(reference: Reference, folder: Path) -> None:
    """Save the reranker with the backbone of the embedder, under newer names."""
    if folder != reference.folder:
        shutil.copytree(reference.folder, folder, dirs_exist_ok=True)
    stored = {
        f"model.{name}".replace("vision_model." * 2, "vision_model."): t for name, t in weights(reference).items()
    }
    save_file({**stored, "score.weight": reference.score.weight.data}, folder / "model.safetensors")
    change_config(folder, architectures=["LlamaNemotronVLForSequenceClassification"], id2label={"0": "LABEL_0"})


def weights(reference: Reference) -> dict[str, Tensor]:
    parts = {"vision_model.vision_model.": reference.vision, "language_model.": reference.text, "mlp1.": reference.mlp}
    stored = {before + name: tensor for before, part in parts.items() for name, tensor in part.state_dict().items()}
    return {name.replace("vision_model." * 3, "vision_model." * 2): tensor for name, tensor in stored.items()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return save_embedder(tmp_path_factory.mktemp("nemotron_vl"))


@pytest.fixture(scope="module")
def llm(reference: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(reference.folder, limit_mm_per_prompt={"image": 3})


@pytest.fixture(scope="module")
def reranker(reference: Reference, tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("nemotron_vl_reranker")
    save_reranker(reference, folder)
    return open_llm(folder)


def test_texts_and_images_of_all_shapes_in_one_batch_equal_transformers(llm: LLM, reference: Reference) -> None:
    inputs: list[tuple[str, list[Image.Image]]] = [
        ("query: the cat is in the city", []),
        ("passage: <image> ", [WHOLE]),
        ("passage: <image> a red bird", [WIDE]),
        ("<image>", [TALL]),
        ("the dog <image> and a fish <image>", [LARGE, WHOLE]),
        ("passage: <image> ", [WHOLE]),
    ]
    prompts = [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in inputs]

    actual = llm.embed(prompts, use_tqdm=False)

    for (text, images), mine in zip(inputs, actual, strict=True):
        assert mine.outputs.embedding == pytest.approx(reference.vector(text, images), abs=1e-5), text


def test_a_conversation_is_one_query_or_one_passage_with_its_images_first(llm: LLM, reference: Reference) -> None:
    content = [{"type": "text", "text": "a red bird"}, {"type": "image_pil", "image_pil": WIDE}]

    chats = [
        Conversation([{"role": "document", "content": content}]),
        Conversation([{"role": "query", "content": "the dog"}]),
        Conversation([{"role": "user", "content": "the dog"}]),
    ]

    actual = llm.engine.pool_sync(PoolRequest(task="embed", inputs=chats))

    expected = [
        reference.vector("<s>passage: <image> a red bird", [WIDE]),
        reference.vector("<s>query: the dog"),
        reference.vector("<s>the dog"),
    ]
    assert_close(torch.stack([answer.data for answer in actual]), torch.tensor(expected), atol=1e-5, rtol=0)
    with pytest.raises(BadRequest, match="one message is embedded at a time, got 2"):
        llm.engine.pool_sync(PoolRequest(task="embed", inputs=[Conversation([*chats[1].messages, *chats[2].messages])]))


def test_a_request_may_ask_for_fewer_tiles(llm: LLM, reference: Reference) -> None:
    prompt = {"prompt": "<image>", "multi_modal_data": {"image": LARGE}}

    fewer = llm.embed({**prompt, "mm_processor_kwargs": {"max_dynamic_patch": 2}}, use_tqdm=False)

    assert fewer[0].outputs.embedding == pytest.approx(reference.vector("<image>", [LARGE], most=2), abs=1e-5)
    with pytest.raises(BadRequest, match="min_dynamic_patch=3, max_dynamic_patch=2"):
        llm.embed({**prompt, "mm_processor_kwargs": {"min_dynamic_patch": 3, "max_dynamic_patch": 2}}, use_tqdm=False)


def test_a_reranker_reads_the_image_of_a_document_before_everything_else(reranker: LLM, reference: Reference) -> None:
    image = {"type": "image_pil", "image_pil": TALL}
    documents: list[Any] = [
        "a red bird",
        {"content": [image]},
        {"content": [image, {"type": "text", "text": "a red bird"}]},
    ]

    actual = reranker.score("the dog", documents, use_tqdm=False)

    assert [each.outputs.score for each in actual] == pytest.approx(
        [
            reference.judged("question:the dog \n \n passage:a red bird"),
            reference.judged("<image> question:the dog \n \n passage:", [TALL]),
            reference.judged("<image> question:the dog \n \n passage:\na red bird", [TALL]),
        ],
        abs=1e-5,
    )


def test_the_text_of_a_document_is_cut_and_its_image_stays(reranker: LLM, reference: Reference) -> None:
    document: Any = {"content": [{"type": "image_pil", "image_pil": TALL}, {"type": "text", "text": "cat " * 200}]}
    prompt = "<image> question:the dog \n \n passage:\n"
    num_image_tokens = 2 + 4 * len(tiles(TALL, MOST))
    num_words = 60 - num_image_tokens - len(reference.tokenizer.encode(prompt.replace("<image>", "")).ids)

    (actual,) = reranker.score("the dog", document, tokenization_kwargs={"truncate_prompt_tokens": 60}, use_tqdm=False)

    assert num_words > 10
    assert actual.outputs.score == pytest.approx(reference.judged(prompt + "cat " * num_words, [TALL]), abs=1e-5)


def test_an_image_in_a_query_is_refused(reranker: LLM) -> None:
    query = {"content": [{"type": "image_pil", "image_pil": TALL}]}

    with pytest.raises(BadRequest, match="0 placeholders '<image>', but 1 images"):
        reranker.score(query, "a red bird", use_tqdm=False)


@pytest.mark.parametrize("size", [(30, 27), (70, 30), (20, 95), (500, 333), (3, 2), (64, 64), (97, 31)])
def test_tiles_have_the_pixels_of_transformers(size: tuple[int, int], reference: Reference) -> None:
    image, vision = make_image(*size), nemotron_vl(read_config(reference.checkpoint)).vision
    assert vision is not None
    reader = NemotronImageProcessor(
        vision.image_spec, read_processor_files(reference.checkpoint), reference.tokenizer.token_to_id, 512, {}
    )

    read = reader.preprocess(image, {}, "image")

    expected = torch.cat([as_columns(tile_pixels(tile)) for tile in tiles(image, MOST)])
    assert_close(normalize_patches(torch.from_numpy(read.patches), read.normalization), expected, atol=1e-6, rtol=0)
    assert read.num_embeds == len(expected) // 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_config": {**VISION, "model_type": "radio"}}, "vision_config.model_type is 'radio'"),
        ({"ps_version": "v1"}, "ps_version is 'v1'"),
        ({"select_layer": -2}, "select_layer is -2"),
    ],
)
def test_unsupported_config_values_are_refused(changes: Any, message: str, reference: Reference) -> None:
    config = read_config(reference.checkpoint)

    with pytest.raises(LoadError, match=message):
        nemotron_vl(HFConfig({**config.values, **changes}))


def test_a_wide_image_becomes_a_wide_row_of_tiles() -> None:
    assert find_closest_aspect_ratio(400, 100, 100, 1, 6) == (4, 1)
    assert find_closest_aspect_ratio(100, 400, 100, 1, 6) == (1, 4)
    assert find_closest_aspect_ratio(100, 100, 100, 1, 6) == (1, 1)


def as_columns(pixels: Tensor) -> Tensor:
    """Return the patches of a tile, [patches, values]."""
    return F.unfold(pixels[None], PATCH, stride=PATCH)[0].T
