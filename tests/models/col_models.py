"""ColQwen2, ColQwen2.5, ColPali and ColSmol at tiny size, in their authors' layout: base models and adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Idefics3Config, Idefics3Model, PaliGemmaModel, Qwen2_5_VLModel, Qwen2VLModel

from tests.models import modernvbert
from tests.models.colpali import config as colpali_config
from tests.models.colpali import save_files as save_colpali_files
from tests.models.qwen_vl import IMAGE_TOKEN, PATCHES, TEXT, TOKENS, VISION
from tests.tiny import DECODER, randomize, save_tokenizer

DIMENSIONS = 16
RANK, ALPHA = 4, 8
TEXT_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QWEN_COL_TOKENS = {**TOKENS, "start": "<|im_start|>"}
SMOL_SPECIAL = [*modernvbert.SPECIAL, "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class ColModel:
    """A model of Transformers and the projection of its last hidden states."""

    model: Any
    projection: nn.Linear
    folder: Path

    def vectors(self, **inputs: Tensor) -> Tensor:
        """[tokens, dimensions], normalised"""
        with torch.inference_mode():
            rows = self.projection(self.model(**inputs).last_hidden_state[0])
        return rows / rows.norm(dim=-1, keepdim=True)


def save_base(
    folder: Path, model: nn.Module, names: Mapping[str, str], config: Mapping[str, Any], projection: str
) -> ColModel:
    """Save a model under published names (a prefix of ours -> theirs), with a projection of that name."""
    linear = nn.Linear(config.get("text_config", config)["hidden_size"], DIMENSIONS)
    randomize(model, std=0.2)
    randomize(linear, seed=1)
    model.eval().requires_grad_(False)
    tensors = {f"{projection}.{name}": tensor for name, tensor in linear.requires_grad_(False).state_dict().items()}
    for name, tensor in model.state_dict().items():
        start = next(start for start in names if name.startswith(start))
        tensors[names[start] + name.removeprefix(start)] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return ColModel(model, linear, folder)


def save_colqwen_base(folder: Path, version: str = "2") -> ColModel:
    """vidore/colqwen2-base and colqwen2.5-base: a flat config of Qwen2-VL, `model.layers` and `visual`."""
    tokenizer = save_tokenizer(folder, QWEN_COL_TOKENS, max_length=512, two_types=False)
    (folder / "preprocessor_config.json").write_text(json.dumps(PATCHES))
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "{{ 'never rendered' }}"}))
    model_class: Any = Qwen2VLModel if version == "2" else Qwen2_5_VLModel
    sizes = {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
    if version == "2.5":
        sizes = {"hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "window_size": 16}
        sizes |= {"fullatt_block_indexes": [1]}  # type: ignore[dict-item]
    vision, token_id = VISION | sizes, tokenizer.token_to_id(IMAGE_TOKEN)
    ids = {"image_token_id": token_id, "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>")}
    model = model_class(model_class.config_class(text_config=dict(TEXT), vision_config=dict(vision), **ids))
    flat = {name: value for name, value in TEXT.items() if name != "rope_parameters"}
    kind = "2" if version == "2" else "2_5"
    config = {
        "architectures": [f"ColQwen{kind}"],
        "model_type": f"qwen{kind}_vl",
        **flat,
        **ids,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
        "rms_norm_eps": 1e-5,
        "vision_config": vision,
        "tie_word_embeddings": True,
    }
    return save_base(folder, model, {"language_model.": "model.", "visual.": "visual."}, config, "custom_text_proj")


def save_colpali_base(folder: Path) -> ColModel:
    """vidore/colpaligemma-3b-pt-448-base: the config of PaliGemma, `model.language_model.model.layers`."""
    settings = colpali_config().vlm_config
    model = PaliGemmaModel(settings)
    save_colpali_files(folder)
    config = {**settings.to_dict(), "architectures": ["ColPali"], "model_type": "paligemma"}
    names = {
        "language_model.": "model.language_model.model.",
        "vision_tower.": "model.vision_tower.vision_model.",
        "multi_modal_projector.": "model.multi_modal_projector.",
    }
    return save_base(folder, model, names, config, "custom_text_proj")


def save_colsmol_base(folder: Path) -> ColModel:
    """vidore/ColSmolVLM-Instruct-256M-base: Idefics3 with `model.text_model` and a projection called `linear`."""
    tokenizer = modernvbert.tiny_tokenizer()
    tokenizer.post_processor = None  # type: ignore[assignment]
    tokenizer.add_special_tokens(SMOL_SPECIAL[-2:])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "GPT2Tokenizer", "model_max_length": 512, "pad_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps(modernvbert.IMAGE_FILE))
    text = DECODER | {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 1024, "model_type": "llama"}
    vision = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": modernvbert.TILE, "patch_size": modernvbert.PATCH}
    config = Idefics3Config(
        text_config=text,
        vision_config=vision,
        scale_factor=modernvbert.FACTOR,
        image_token_id=tokenizer.token_to_id("<image>"),
    )
    model = Idefics3Model(config)
    written = {**config.to_dict(), "architectures": ["ColIdefics3"], "model_type": "idefics3"}
    return save_base(folder, model, {"": "model."}, written, "linear")


def save_adapter(folder: Path, base: ColModel, base_name: str, layers: str, projection: str) -> ColModel:
    """Save an adapter for the text layers and the projection, and merge it into the reference of Transformers.

    `layers`: name of the text layers for PEFT.
    """
    text = getattr(base.model, "language_model", None) or base.model.text_model
    modules = {
        f"{layers}{name}": module
        for name, module in text.layers.named_modules()
        if name.rpartition(".")[2] in TEXT_LAYERS
    }
    return write_adapter(folder, base, base_name, modules | {projection: base.projection})


def write_adapter(folder: Path, base: ColModel, base_name: str, modules: Mapping[str, Any]) -> ColModel:
    generator, tensors = torch.Generator().manual_seed(3), dict[str, Tensor]()
    for name, module in modules.items():
        rows, columns = module.weight.shape
        down, up = (torch.randn(shape, generator=generator) * 0.3 for shape in ((RANK, columns), (rows, RANK)))
        tensors |= {f"base_model.model.{name}.lora_A.weight": down, f"base_model.model.{name}.lora_B.weight": up}
        module.weight.data += up @ down * (ALPHA / RANK)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    write_adapter_config(folder, base_name)
    for file in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        (folder / file).write_bytes((base.folder / file).read_bytes())
    return ColModel(base.model, base.projection, folder)


def write_adapter_config(folder: Path, base_name: str | None, **changes: Any) -> None:
    settings = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base_name,
        "revision": None,
        "inference_mode": True,
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.1,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": "gaussian",
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
        "target_modules": f"(.*(model).*({'|'.join(TEXT_LAYERS)}).*$|.*(custom_text_proj).*$)",
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings | changes))


def save_colqwen(folder: Path, version: str = "2") -> ColModel:
    """vidore/colqwen2-v1.0 and colqwen2.5-v0.2, with the base model beside it."""
    base = _beside(folder, f"colqwen{version}-base")
    made = save_colqwen_base(base, version)
    return save_adapter(folder, made, f"vidore/colqwen{version}-base", "model.layers.", "custom_text_proj")


def save_colnomic(folder: Path) -> ColModel:
    """nomic-ai/colnomic-embed-multimodal-*: on Qwen2.5-VL as published, with the projection in the adapter."""
    made = save_colqwen_base(base := _beside(folder, "Qwen2.5-VL-3B-Instruct"), "2.5")
    values = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(values | {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}))
    tensors = load_file(base / "model.safetensors")
    projection = {name: tensors.pop(name) for name in list(tensors) if name.startswith("custom_text_proj")}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    text = {f"model.{path}": module for path, module in made.model.language_model.named_modules()}
    layers = {path: module for path, module in text.items() if path.rpartition(".")[2] in TEXT_LAYERS}
    reference = write_adapter(folder, made, "Qwen/Qwen2.5-VL-3B-Instruct", layers)
    saved = {f"base_model.model.{name}": tensor for name, tensor in projection.items()}
    save_file(load_file(folder / "adapter_model.safetensors") | saved, folder / "adapter_model.safetensors")
    library = "colpali_engine.models.qwen2_5.colqwen2_5.modeling_colqwen2_5"
    mapping = {"base_model_class": "ColQwen2_5", "parent_library": library}
    write_adapter_config(folder, "Qwen/Qwen2.5-VL-3B-Instruct", task_type=None, auto_mapping=mapping)
    return reference


def save_colpali(folder: Path) -> ColModel:
    """vidore/colpali-v1.2 and -v1.3, with the base model beside it."""
    made = save_colpali_base(_beside(folder, "colpaligemma-3b-pt-448-base"))
    layers = "model.language_model.model.layers."
    return save_adapter(folder, made, "vidore/colpaligemma-3b-pt-448-base", layers, "custom_text_proj")


def save_colsmol(folder: Path) -> ColModel:
    """vidore/colSmol-256M, with the base model beside it; its adapter also changes the connector."""
    made = save_colsmol_base(_beside(folder, "ColSmolVLM-Instruct-256M-base"))
    return save_adapter(folder, made, "vidore/ColSmolVLM-Instruct-256M-base", "model.text_model.layers.", "linear")


def _beside(folder: Path, name: str) -> Path:
    base = folder.parent / name
    base.mkdir()
    return base
