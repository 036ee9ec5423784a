"""Formats of Sentence Transformers and model2vec: modular cross-encoders, static embeddings, routers, CLIP folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from tests.layouts.registry import builder
from tests.tiny import ENCODER, VOCAB_SIZE, change_config, randomize, save_tiny, save_tokenizer

OLD = "sentence_transformers.models"
NEW = "sentence_transformers.sentence_transformer.modules"
# the last one is EOS; its id must not be 2, which Transformers treats specially
CLIP_TOKENS = {
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
    "cls_token": "<s>",
    "sep_token": "</s>",
}
SPARSE = "sentence_transformers.sparse_encoder.models"


@builder
def ettin_reranker(folder: Path) -> None:
    """cross-encoder/ettin-reranker-*: a ModernBERT, and the head in modules of its own."""
    save_tiny(folder, "ModernBertModel")
    write_modules(
        folder,
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        (f"{NEW}.pooling.Pooling", "1_Pooling"),
        ("sentence_transformers.base.modules.dense.Dense", "2_Dense"),
        (f"{NEW}.layer_norm.LayerNorm", "3_LayerNorm"),
        ("sentence_transformers.base.modules.dense.Dense", "4_Dense"),
    )
    task = {"transformer_task": "feature-extraction", "module_output_name": "token_embeddings"}
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    write_json(folder / "sentence_bert_config.json", {**task, "modality_config": {"text": text}})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "5.5.0"},
            "activation_fn": "torch.nn.modules.linear.Identity",
            "default_prompt_name": None,
            "model_type": "CrossEncoder",
            "prompts": {},
        },
    )
    write_json(
        folder / "1_Pooling/config.json", {"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}
    )
    write_dense(folder / "2_Dense", 32, 32, "torch.nn.modules.activation.GELU", bias=False)
    write_json(folder / "3_LayerNorm/config.json", {"dimension": 32})
    save_file(
        {"norm.weight": random_tensor(32, seed=5) + 1, "norm.bias": random_tensor(32, seed=6)},
        folder / "3_LayerNorm/model.safetensors",
    )
    write_dense(folder / "4_Dense", 32, 1, "torch.nn.modules.linear.Identity", bias=True, module_output_name="scores")


@builder
def static_retrieval(folder: Path) -> None:
    """sentence-transformers/static-*: a folder without config.json."""
    write_modules(folder, (f"{OLD}.StaticEmbedding", "0_StaticEmbedding"))
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "3.3.0"},
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    write_static(folder / "0_StaticEmbedding", {"embedding.weight": random_tensor(VOCAB_SIZE, 24, seed=1)})


@builder
def potion(folder: Path) -> None:
    """minishlab/potion-*: a model2vec model that Sentence Transformers loads too."""
    write_modules(folder, (f"{OLD}.StaticEmbedding", "."), (f"{OLD}.Normalize", "1_Normalize"))
    write_model2vec(folder, {"embeddings": random_tensor(VOCAB_SIZE, 24, seed=1)})


@builder
def m2v_base_output(folder: Path) -> None:
    """minishlab/M2V_base_output: without Sentence Transformers files, the vectors in float16."""
    write_model2vec(folder, {"embeddings": random_tensor(VOCAB_SIZE, 24, seed=1).half()})


@builder
def model2vec_quantized_vocabulary(folder: Path) -> None:
    """A model2vec model with vocabulary quantization: few rows, which tokens share, and a weight per token."""
    write_modules(folder, (f"{OLD}.StaticEmbedding", "."), (f"{OLD}.Normalize", "1_Normalize"))
    generator = torch.Generator().manual_seed(3)
    write_model2vec(
        folder,
        {
            "embeddings": random_tensor(20, 24, seed=1),
            "mapping": torch.randint(20, (VOCAB_SIZE,), generator=generator),
            "weights": random_tensor(VOCAB_SIZE, seed=2).abs(),
        },
        vocabulary_quantization=20,
    )


@builder
def opensearch_sparse_doc(folder: Path) -> None:
    """opensearch-neural-sparse-encoding-doc-v3-distill: SPLADE for documents, a table of weights for queries."""
    save_tiny(folder, "DistilBertForMaskedLM")
    write_modules(folder, (f"{OLD}.Router", ""))
    write_json(
        folder / "router_config.json",
        {
            "types": {
                "query_0_SparseStaticEmbedding": f"{SPARSE}.SparseStaticEmbedding.SparseStaticEmbedding",
                "": f"{SPARSE}.MLMTransformer.MLMTransformer",
                "document_1_SpladePooling": f"{SPARSE}.SpladePooling.SpladePooling",
            },
            "structure": {
                "query": ["query_0_SparseStaticEmbedding"],
                "document": ["", "document_1_SpladePooling"],
            },
            "parameters": {"default_route": "document", "allow_empty_key": True},
        },
    )
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SparseEncoder",
            "__version__": {"sentence_transformers": "5.0.0"},
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "dot",
        },
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    write_json(
        folder / "document_1_SpladePooling/config.json",
        {"pooling_strategy": "max", "activation_function": "log1p_relu", "word_embedding_dimension": VOCAB_SIZE},
    )
    query = folder / "query_0_SparseStaticEmbedding"
    write_json(query / "config.json", {"frozen": True})
    save_tokenizer(query, max_length=64)
    save_file({"weight": random_tensor(len(read_vocabulary(query)), seed=4).abs()}, query / "model.safetensors")


@builder
def static_query_router(folder: Path) -> None:
    """An asymmetric embedder (NIFE): a table for queries, a transformer for documents, and a Normalize for both."""
    write_modules(
        folder,
        ("sentence_transformers.base.modules.router.Router", ""),
        ("sentence_transformers.base.modules.normalize.Normalize", "1_Normalize"),
    )
    types = {
        "query_0_StaticEmbedding": f"{NEW}.static_embedding.StaticEmbedding",
        "document_0_Transformer": "sentence_transformers.base.modules.transformer.Transformer",
        "document_1_Pooling": f"{NEW}.pooling.Pooling",
    }
    structure = {
        "query": ["query_0_StaticEmbedding"],
        "document": ["document_0_Transformer", "document_1_Pooling"],
    }
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    write_json(folder / "router_config.json", {"types": types, "structure": structure, "parameters": parameters})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "SentenceTransformer",
            "__version__": {"sentence_transformers": "5.4.0"},
            "prompts": {"query": "search: ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )
    write_static(folder / "query_0_StaticEmbedding", {"embedding.weight": random_tensor(VOCAB_SIZE, 32, seed=1)})
    (folder / "document_0_Transformer").mkdir()
    save_tiny(folder / "document_0_Transformer", "BertModel")
    write_json(folder / "document_0_Transformer/sentence_bert_config.json", {"max_seq_length": 48})
    write_json(
        folder / "document_1_Pooling/config.json",
        {"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": True},
    )


@builder
def instructor(folder: Path) -> None:
    """hkunlp/instructor-*: the instruction is in the prompt and not pooled, which no file says."""
    save_tiny(folder, "T5EncoderModel")
    write_modules(
        folder,
        (f"{OLD}.Transformer", ""),
        (f"{OLD}.Pooling", "1_Pooling"),
        (f"{OLD}.Dense", "2_Dense"),
        (f"{OLD}.Normalize", "3_Normalize"),
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    write_json(
        folder / "1_Pooling/config.json",
        {"word_embedding_dimension": 32, **{f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes}},
    )
    (folder / "2_Dense").mkdir()
    write_json(
        folder / "2_Dense/config.json",
        {
            "in_features": 32,
            "out_features": 32,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
        },
    )
    torch.save({"linear.weight": random_tensor(32, 32, seed=2)}, folder / "2_Dense/pytorch_model.bin")


@builder
def multi_vector(folder: Path) -> None:
    """A MultiVectorEncoder of Sentence Transformers 6 whose scores are means."""
    save_tiny(folder, "BertModel")
    write_modules(
        folder,
        ("sentence_transformers.base.modules.transformer.Transformer", ""),
        ("sentence_transformers.base.modules.dense.Dense", "1_Dense"),
        ("sentence_transformers.base.modules.normalize.Normalize", "2_Normalize"),
        ("sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask", "3_MultiVectorMask"),
    )
    tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    write_dense(folder / "1_Dense", 32, 16, "torch.nn.modules.linear.Identity", bias=False, **tokens)
    write_json(folder / "2_Normalize/config.json", tokens)
    write_json(
        folder / "3_MultiVectorMask/config.json",
        {"skiplist_words": [",", "."], "skiplist_tasks": "document", "keep_only_token_ids": None},
    )
    expansion = {"strategy": "min", "attend": True, "token": None, "length": 12}
    write_json(folder / "sentence_bert_config.json", {"document_length": 40, "query_expansion": expansion})
    write_json(
        folder / "config_sentence_transformers.json",
        {
            "model_type": "MultiVectorEncoder",
            "__version__": {"sentence_transformers": "6.0.0"},
            "prompts": {"query": "query ", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "meanmaxsim",
        },
    )


@builder
def sentence_transformers_clip(folder: Path) -> None:
    """sentence-transformers/clip-ViT-B-16, -L-14: the root has modules.json only, the model is in 0_CLIPModel."""
    write_modules(folder, (f"{OLD}.CLIPModel", "0_CLIPModel"))
    write_json(folder / "config_sentence_transformers.json", {"__version__": {"sentence_transformers": "2.2.0"}})
    inner = folder / "0_CLIPModel"
    inner.mkdir()
    text = ENCODER | {"max_position_embeddings": 24, "pad_token_id": 1, "bos_token_id": 3, "eos_token_id": 4}
    vision = {"hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = CLIPConfig(text_config=text, vision_config=vision | {"patch_size": 4, "image_size": 28}, projection_dim=20)
    model = CLIPModel(config)
    randomize(model, std=0.2)
    model.config.save_pretrained(inner)
    change_config(inner, architectures=["CLIPModel"])
    torch.save(model.state_dict(), inner / "pytorch_model.bin")
    save_tokenizer(inner, CLIP_TOKENS, max_length=24, two_types=False)
    CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28}).save_pretrained(inner)


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))


def write_modules(folder: Path, *modules: tuple[str, str]) -> None:
    entries = [
        {"idx": index, "name": str(index), "path": path, "type": kind} for index, (kind, path) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)


def write_dense(folder: Path, size_in: int, size_out: int, activation: str, *, bias: bool, **config: str) -> None:
    sizes = {"in_features": size_in, "out_features": size_out, "bias": bias, "activation_function": activation}
    names = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    write_json(folder / "config.json", {**sizes, **names, **config})
    tensors = {"linear.weight": random_tensor(size_out, size_in, seed=size_out)}
    if bias:
        tensors["linear.bias"] = random_tensor(size_out, seed=7)
    save_file(tensors, folder / "model.safetensors")


def write_static(folder: Path, tensors: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    save_file(tensors, folder / "model.safetensors")


def write_model2vec(folder: Path, tensors: dict[str, Tensor], **config: Any) -> None:
    write_static(folder, tensors)
    write_json(
        folder / "config.json",
        {
            "model_type": "model2vec",
            "architectures": ["StaticModel"],
            "tokenizer_name": "baai/bge-base-en-v1.5",
            "apply_pca": 24,
            "apply_zipf": True,
            "hidden_dim": 24,
            "seq_length": 1000000,
            "normalize": True,
            **config,
        },
    )


def read_vocabulary(folder: Path) -> dict[str, int]:
    vocabulary: dict[str, int] = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return vocabulary


def random_tensor(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.3
