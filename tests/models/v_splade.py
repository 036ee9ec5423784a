"""A tiny V-SPLADE checkpoint in its published layout, and its arithmetic on top of Transformers' ModernVBERT."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, softplus
from transformers import ColModernVBertProcessor, ModernVBertConfig, ModernVBertModel, PreTrainedTokenizerFast
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from tests.models.modernvbert import FACTOR, IMAGE_FILE, PATCH, PER_TILE, TILE
from tests.tiny import randomize

# ids as published: their values are part of the model
NUM_WORDS, SPECIAL_IDS, IMAGE_ID = 50368, range(50280, 50285), 50407
NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
ADDED = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
ADDED += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
ADDED += ["<image>"]
PAGE_PROMPT = "<|begin_of_text|>User:<image><end_of_utterance>\nAssistant:"
SIZE = 32
TEXT: dict[str, Any] = {
    "model_type": "modernbert",
    "vocab_size": NUM_WORDS + len(ADDED),
    "hidden_size": SIZE,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "global_attn_every_n_layers": 3,
    "local_attention": 12,
    "max_position_embeddings": 512,
    **{"pad_token_id": 50283, "cls_token_id": 50281, "sep_token_id": 50282, "bos_token_id": 50281},
    "eos_token_id": 50282,
}
VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": TILE,
    "patch_size": PATCH,
}
CONFIG: dict[str, Any] = {
    "additional_vocab_size": len(ADDED),
    "architectures": ["BiModernVBert"],
    "hidden_size": SIZE,
    "image_token_id": IMAGE_ID,
    "model_type": "modernvbert",
    "pixel_shuffle_factor": FACTOR,
    "text_config": TEXT,
    "vision_config": VISION,
}
# ettin-encoder has one base for all layers
ROPE = {kind: {"rope_type": "default", "rope_theta": 160000.0} for kind in ("full_attention", "sliding_attention")}
ROUTER = {
    "types": {
        "query_0_VSPLADEStaticEmbedding": "modeling_st_vsplade.VSPLADEStaticEmbedding",
        "": "sentence_transformers.base.modules.transformer.Transformer",
        "document_1_SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
    },
    "structure": {"query": ["query_0_VSPLADEStaticEmbedding"], "document": ["", "document_1_SpladePooling"]},
    "parameters": {"default_route": "document", "allow_empty_key": True},
}


@cache
def make_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer with a vocabulary of the published size."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the"]
    words += [f"unused{row}" for row in range(len(words), NUM_WORDS)]
    words[SPECIAL_IDS.start : SPECIAL_IDS.stop] = NAMES.values()
    ids = {word: row for row, word in enumerate([*words, *ADDED])}
    tokenizer = Tokenizer(models.BPE(ids, [("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*NAMES.values(), *ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    )
    return tokenizer


class PlainModel:
    """The published arithmetic: hidden states of Transformers, then the head; and the table of queries."""

    def __init__(self) -> None:
        config = CONFIG | {"text_config": TEXT | {"rope_parameters": ROPE}}
        self.model = ModernVBertModel(ModernVBertConfig(**config)).eval().requires_grad_(False)
        randomize(self.model, std=0.2)
        random = torch.Generator().manual_seed(4)
        shapes = {"dense": (SIZE, SIZE), "norm": (SIZE,), "decoder": (NUM_WORDS, SIZE)}
        self.head = {
            f"{name}.{kind}": torch.randn(shape if kind == "weight" else shape[:1], generator=random) * 0.3
            for name, shape in shapes.items()
            for kind in ("weight", "bias")
        }
        self.query_encoder = {
            "embeddings.weight": torch.randn(NUM_WORDS, SIZE, generator=random),
            "projection.weight": torch.randn(1, SIZE, generator=random),
            "projection.bias": torch.randn(1, generator=random),
        }
        fast = PreTrainedTokenizerFast(tokenizer_object=make_tokenizer(), **NAMES)
        fast.image_token, fast.image_token_id = "<image>", IMAGE_ID
        self.processor = ColModernVBertProcessor(Idefics3ImageProcessorPil(**IMAGE_FILE), fast, image_seq_len=PER_TILE)

    def document(self, given: str | Image.Image) -> Tensor:
        """Return the sparse vector of a page or text, in dense form."""
        if isinstance(given, str):
            inputs: dict[str, Any] = {"input_ids": torch.tensor([make_tokenizer().encode(given).ids])}
        else:
            found = self.processor(text=[PAGE_PROMPT], images=[[given]])
            inputs = {"input_ids": found["input_ids"], "pixel_values": found["pixel_values"]}
        with torch.inference_mode():
            states = self.model(**inputs).last_hidden_state[0]
        hidden = gelu(linear(states, self.head["dense.weight"], self.head["dense.bias"]))
        hidden = layer_norm(hidden, (SIZE,), self.head["norm.weight"], self.head["norm.bias"])
        logits = linear(hidden, self.head["decoder.weight"], self.head["decoder.bias"]) * SIZE**-0.25
        weights = torch.log1p(torch.relu(logits)).amax(0)
        weights[list(SPECIAL_IDS)] = 0
        return weights

    def query(self, text: str) -> Tensor:
        """Return the sum of the weights of a query's tokens; special and additional ones have none."""
        ids = make_tokenizer().encode(text, add_special_tokens=False).ids
        weights = torch.zeros(NUM_WORDS)
        for row in ids:
            if row < NUM_WORDS and row not in SPECIAL_IDS:
                embedding = self.query_encoder["embeddings.weight"][row]
                projected = embedding @ self.query_encoder["projection.weight"][0]
                weights[row] += softplus(projected + self.query_encoder["projection.bias"][0])
        return weights

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their published names."""
        stored = {
            f"encoder.encoder.model.{name}".replace("modality_projection.", "modality_projection.proj."): tensor
            for name, tensor in self.model.state_dict().items()
        }
        table = "encoder.encoder.model.text_model.embeddings.tok_embeddings"
        rows = stored[f"{table}.weight"]
        stored |= {f"{table}.weight": rows[:NUM_WORDS], f"{table}.additional_embedding.weight": rows[NUM_WORDS:]}
        stored["encoder.encoder.model.text_model.layers.0.attn_norm.weight"] = torch.ones(SIZE)
        stored |= {f"encoder.mlm_head.{name}": tensor for name, tensor in self.head.items()}
        stored |= {f"query_encoder.{name}": tensor for name, tensor in self.query_encoder.items()}
        return {name: tensor.clone() for name, tensor in stored.items()}


def save_v_splade(folder: Path, *, with_modules: bool = False, **changes: Any) -> PlainModel:
    plain = PlainModel()
    save_file(plain.tensors(), folder / "model.safetensors")
    make_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **NAMES}
    files: dict[str, Any] = {
        "config": CONFIG | changes,
        "tokenizer_config": settings,
        "preprocessor_config": IMAGE_FILE,
    }
    if with_modules:
        router = "sentence_transformers.base.modules.router.Router"
        files |= {"modules": [{"idx": 0, "name": "0", "path": "", "type": router}], "router_config": ROUTER}
        files["config"] |= {"auto_map": {"AutoModelForMaskedLM": "modeling_vsplade.VSPLADEForMaskedLM"}}
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return plain
