"""Phi-3-vision equals CLIP and Phi-3 of Transformers combined, on tiny random checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3Model

from cenote import LLM, PoolingParams
from cenote.errors import BadRequest, LoadError
from cenote.inputs.images.phi3v import Phi3VImageProcessor
from cenote.models.architecture import HFConfig
from cenote.models.image_spec import ProcessorFiles
from cenote.models.phi3v import phi3v
from cenote.protocol.input_types import Conversation
from cenote.protocol.requests import PoolRequest
from tests.factories import LLMFactory
from tests.models.qwen_vl import make_image
from tests.tiny import DECODER, randomize, save_tokenizer

TOKENS = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "image": "<|image|>", "eos_token": "</s>"}
SIDE, PATCH, CROPS = 28, 7, 4
VISION: dict[str, Any] = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 2}
VISION |= {"image_size": SIDE, "patch_size": PATCH}
TEXT = DECODER | {
    "max_position_embeddings": 800,
    "original_max_position_embeddings": 400,
    "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0] * 4}
    | {"rope_theta": 10000.0},
}
LAYER = {"hd_transform_order": "sub_glb", "use_hd_transform": True, "with_learnable_separator": True}
MEAN, STD = torch.tensor([0.48145466, 0.4578275, 0.40821073]), torch.tensor([0.26862954, 0.26130258, 0.27577711])
RAW = PoolingParams(use_activation=False)
SQUARE, WIDE, TALL = make_image(60, 57), make_image(130, 31, 1), make_image(21, 99, 2)
INPUTS: list[tuple[str, list[Image.Image]]] = [
    ("the cat is in the city", []),
    ("<|image_1|>", [SQUARE]),
    ("<|image_1|> a red bird", [WIDE]),
    ("the old <|image_1|> river <|image_2|> in berlin", [TALL, SQUARE]),
    ("how big is it? <|image_1|> the dog", [SQUARE]),
]


class Reference:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        save_tokenizer(folder, TOKENS, max_length=400, two_types=False)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.vision = CLIPVisionModel(CLIPVisionConfig(**VISION)).eval()
        self.text = Phi3Model(Phi3Config(**TEXT)).eval()
        self.projection = nn.Sequential(nn.Linear(96, 32), nn.GELU(), nn.Linear(32, 32))
        for seed, module in enumerate((self.vision, self.text, self.projection)):
            randomize(module, seed)
        generator = torch.Generator().manual_seed(9)
        self.line_end, self.between = torch.randn(1, 1, 1, 96, generator=generator), torch.randn(1, 1, 96)

    def states(self, text: str, images: Sequence[Image.Image]) -> Tensor:
        """Return [tokens, hidden]; text between images is tokenized in separate chunks."""
        first = [self.tokenizer.token_to_id("<s>")] if images else []
        chunks = [text]
        for number in range(1, len(images) + 1):
            chunks[-1:] = chunks[-1].split(f"<|image_{number}|>")
        with torch.inference_mode():
            pieces = []
            for place, chunk in enumerate(chunks):
                ids = torch.tensor(first + self.tokenizer.encode(chunk).ids)
                pieces.append(self.text.embed_tokens(ids))
                if place < len(images):
                    pieces.append(self.image_rows(images[place]))
            return self.text(inputs_embeds=torch.cat(pieces)[None]).last_hidden_state[0]  # type: ignore[no-any-return]

    def image_rows(self, image: Image.Image) -> Tensor:
        tiles, rows, columns = hd_tiles(image)
        states = self.vision(pixel_values=tiles, output_hidden_states=True).hidden_states[-2][:, 1:]
        lines = [self.lines(states[1:].view(rows, columns, 4, 4, 24)), self.between[0]]
        return self.projection(torch.cat([*lines, self.lines(states[:1].view(1, 1, 4, 4, 24))]))  # type: ignore

    def lines(self, tiles: Tensor) -> Tensor:
        """Merge [rows, columns, height, width, hidden] to squares of four patches, with a separator after each row."""
        canvas = torch.cat([torch.cat(list(band), dim=1) for band in tiles])
        found = []
        for y in range(0, canvas.shape[0], 2):
            found += [canvas[y : y + 2, x : x + 2].reshape(-1) for x in range(0, canvas.shape[1], 2)]
            found.append(self.line_end.flatten())
        return torch.stack(found)


def hd_tiles(image: Image.Image) -> tuple[Tensor, int, int]:
    """Return the global image and its tiles, and the rows and columns of tiles."""
    lies = image.width >= image.height
    image = image if lies else image.transpose(Image.Transpose.TRANSPOSE)
    ratio, scale = image.width / image.height, 1
    while scale * math.ceil(scale / ratio) <= CROPS:
        scale += 1
    scale -= 1
    image = image.resize((scale * SIDE, int(scale * SIDE / ratio)), Image.Resampling.BILINEAR)
    missing = math.ceil(image.height / SIDE) * SIDE - image.height
    image = ImageOps.expand(image, (0, missing // 2, 0, missing - missing // 2), fill=(255, 255, 255))
    image = image if lies else image.transpose(Image.Transpose.TRANSPOSE)
    pixels = (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - MEAN[:, None, None]) / STD[:, None, None]
    whole = F.interpolate(pixels[None], size=(SIDE, SIDE), mode="bicubic")
    cut = [tile for band in pixels.split(SIDE, dim=1) for tile in band.split(SIDE, dim=2)]
    return torch.cat((whole, torch.stack(cut))), image.height // SIDE, image.width // SIDE


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("phi3v")
    made = Reference(folder)
    config = Phi3Config(**TEXT).to_dict() | {
        "architectures": ["Phi3VForCausalLM"],
        "model_type": "phi3_v",
        "img_processor": VISION | {"image_dim_out": 24, "layer_idx": -2},
        "embd_layer": LAYER,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"num_crops": CROPS}))
    stored = {f"model.{name}": tensor for name, tensor in made.text.state_dict().items()}
    before = "model.vision_embed_tokens."
    stored[f"{before}wte.weight"] = stored.pop("model.embed_tokens.weight")
    for name, tensor in made.vision.state_dict().items():
        stored[f"{before}img_processor.vision_model.{name.removeprefix('vision_model.')}"] = tensor
    stored |= {f"{before}img_projection.{name}": tensor for name, tensor in made.projection.state_dict().items()}
    stored |= {
        f"{before}sub_GN": made.line_end,
        f"{before}glb_GN": made.between,
        "lm_head.weight": torch.zeros(160, 32),
    }
    save_file(stored, folder / "model.safetensors")
    return made


@pytest.fixture(scope="module")
def llm(reference: Reference, open_llm: LLMFactory) -> LLM:
    return open_llm(reference.folder, limit_mm_per_prompt={"image": 2})


def test_every_token_of_texts_and_images_in_one_batch_equals_transformers(llm: LLM, reference: Reference) -> None:
    prompts = [{"prompt": text, "multi_modal_data": {"image": images}} if images else text for text, images in INPUTS]

    actual = llm.encode(prompts, pooling_task="token_embed", pooling_params=RAW, use_tqdm=False)

    for (text, images), mine in zip(INPUTS, actual, strict=True):
        assert_close(mine.outputs.data, reference.states(text, images), atol=1e-4, rtol=0)


def test_a_conversation_is_its_texts_and_images_joined_by_blanks(llm: LLM, reference: Reference) -> None:
    content = [{"type": "image_pil", "image_pil": WIDE}, {"type": "text", "text": "a red bird"}]

    (actual,) = llm.engine.pool_sync(
        PoolRequest(task="embed", inputs=[Conversation([{"role": "user", "content": content}])])
    )

    last = reference.states("<|image_1|> a red bird", [WIDE])[-1]
    assert_close(torch.from_numpy(actual.data), F.normalize(last, dim=0), atol=1e-5, rtol=0)


def test_image_placeholders_are_numbered_from_one(llm: LLM) -> None:
    prompt = {"prompt": "<|image_2|> a <|image_1|>", "multi_modal_data": {"image": [WIDE, TALL]}}

    with pytest.raises(BadRequest, match=r"the numbers \[2, 1\]; expected 1, 2, 3"):
        llm.embed(prompt, use_tqdm=False)


@pytest.mark.parametrize("size", [(60, 57), (130, 31), (21, 99), (9, 5), (56, 56), (300, 299), (1, 3)])
def test_tiles_have_the_pixels_and_the_tokens_of_transformers(size: tuple[int, int], reference: Reference) -> None:
    image, architecture = make_image(*size), phi3v(HFConfig(json.loads((reference.folder / "config.json").read_text())))
    assert architecture.vision is not None
    files = ProcessorFiles({"num_crops": CROPS})
    reader = Phi3VImageProcessor(architecture.vision.image_spec, files, reference.tokenizer.token_to_id, 400, {})

    read = reader.preprocess(image, {}, "image")

    tiles, rows, columns = hd_tiles(image)
    expected = torch.cat([F.unfold(tile[None], PATCH, stride=PATCH)[0].T for tile in tiles])
    assert_close(torch.from_numpy(read.patches), expected, atol=2e-6, rtol=0)
    assert read.num_embeds == (rows * columns + 1) * 4 + 1 + (rows + 1) * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embd_layer": LAYER | {"hd_transform_order": "glb_sub"}}, "hd_transform_order is 'glb_sub'"),
        ({"img_processor": {"type_feature": "cls_patch"}}, "type_feature is 'cls_patch'"),
    ],
)
def test_unsupported_config_values_are_refused(changes: Any, message: str, reference: Reference) -> None:
    config = json.loads((reference.folder / "config.json").read_text())

    with pytest.raises(LoadError, match=message):
        phi3v(HFConfig(config | changes))
