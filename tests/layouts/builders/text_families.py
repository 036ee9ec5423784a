"""Layouts of text embedders and rerankers whose repositories have their own code or architecture names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor

from tests.layouts.registry import builder
from tests.tiny import (
    BERT_TOKENS,
    ENCODER,
    LETTERS,
    PUNCTUATION,
    T5_TOKENS,
    WORDS,
    change_config,
    save_tiny,
    save_tokenizer,
)

LLAMA3_TOKENS = {
    "bos_token": "<|begin_of_text|>",
    "eos_token": "<|eot_id|>",
    "pad_token": "[PAD]",
    "unk_token": "<unk>",
    "start": "<|start_header_id|>",
    "end": "<|end_header_id|>",
}
LLAMA3_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}{% endfor %}"
)
OLD_MODULES = "sentence_transformers.models"


def write_json(folder: Path, file: str, values: Any) -> None:
    path = folder / file
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(values))


def write_modules(
    folder: Path, *types: str, pooling: str = "mean_tokens", size: int = 32, max_length: int = 64
) -> None:
    """Write modules.json (types after Transformer and Pooling) and the files of these two."""
    names = [f"{OLD_MODULES}.Transformer", f"{OLD_MODULES}.Pooling", *types]
    paths = ["", "1_Pooling", *(f"{row}_{name.rpartition('.')[2]}" for row, name in enumerate(types, start=2))]
    paths = ["" if "FlexibleQuantizer" in name else path for name, path in zip(names, paths, strict=True)]
    modules = [
        {"idx": row, "name": str(row), "path": path, "type": name}
        for row, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder, "modules.json", modules)
    flags = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    config = {"word_embedding_dimension": size} | {f"pooling_mode_{flag}": flag == pooling for flag in flags}
    write_json(folder, "1_Pooling/config.json", config)
    write_json(folder, "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})


def rewrite_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    file = folder / "model.safetensors"
    tensors = {name: tensor.clone().contiguous() for name, tensor in change(load_file(file)).items()}
    save_file(tensors, file, metadata={"format": "pt"})


@builder
def nemotron_3_embed(folder: Path) -> None:
    save_tiny(folder, "Ministral3Model", is_causal=False, sliding_window=None)
    change_config(folder, pooling="avg")
    write_modules(folder, f"{OLD_MODULES}.Normalize")
    prompts = {"query": "query: ", "document": "passage: "}
    write_json(folder, "config_sentence_transformers.json", {"prompts": prompts, "similarity_fn_name": "cosine"})


@builder
def pplx_embed_v1(folder: Path) -> None:
    save_tiny(folder, "Qwen3Model", is_causal=False)
    code = {"AutoConfig": "configuration.PPLXQwen3Config", "AutoModel": "modeling.PPLXQwen3Model"}
    names = {"architectures": ["PPLXQwen3Model"], "model_type": "bidirectional_pplx_qwen3"}
    change_config(folder, drop=("is_causal",), auto_map=code, **names)
    write_modules(folder, "st_quantize.FlexibleQuantizer")


@builder
def gritlm_7b(folder: Path) -> None:
    save_tiny(folder, "MistralForCausalLM", sliding_window=None, is_causal=False)
    code = {"AutoModel": "MistralModel", "AutoModelForCausalLM": "MistralForCausalLM"}
    auto_map = {name: f"modeling_gritlm7b.{value}" for name, value in code.items()}
    change_config(folder, drop=("is_causal",), sliding_window=4096, auto_map=auto_map, _name_or_path="GritLM/GritLM-7B")


@builder
def stella_en_1_5b_v5(folder: Path) -> None:
    save_tiny(folder, "Qwen2ForCausalLM", is_causal=False)
    classes = {"AutoModel": "Qwen2Model", "AutoModelForCausalLM": "Qwen2ForCausalLM"}
    auto_map = {name: f"modeling_qwen.{value}" for name, value in classes.items()}
    change_config(folder, drop=("is_causal",), auto_map=auto_map)
    write_modules(folder, f"{OLD_MODULES}.Dense")
    dense = {
        "in_features": 32,
        "out_features": 16,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    write_json(folder, "2_Dense/config.json", dense)
    generator = torch.Generator().manual_seed(3)
    weight, bias = torch.randn(16, 32, generator=generator), torch.randn(16, generator=generator)
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "2_Dense" / "model.safetensors")


@builder
def contriever(folder: Path) -> None:
    save_tiny(folder, "BertModel")
    change_config(folder, architectures=["Contriever"])


@builder
def dpr_ctx_encoder(folder: Path) -> None:
    _save_dpr(folder, "DPRContextEncoder")


@builder
def dpr_question_encoder(folder: Path) -> None:
    _save_dpr(folder, "DPRQuestionEncoder")


@builder
def dpr_ctx_encoder_projected(folder: Path) -> None:
    _save_dpr(folder, "DPRContextEncoder", projection_dim=12)


def _save_dpr(folder: Path, name: str, **changes: Any) -> None:
    import transformers

    from tests.tiny import randomize

    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**ENCODER | {"pad_token_id": 0} | changes)).eval()
    randomize(model)
    model.save_pretrained(folder)
    save_tokenizer(folder, BERT_TOKENS)


@builder
def bilingual_embedding_large(folder: Path) -> None:
    save_tiny(folder, "XLMRobertaModel", type_vocab_size=1)
    _make_bilingual(folder)


@builder
def bilingual_embedding_small(folder: Path) -> None:
    save_tiny(folder, "BertModel")
    _make_bilingual(folder)


def _make_bilingual(folder: Path) -> None:
    code = {"AutoConfig": "config.BilingualConfig", "AutoModel": "modeling.BilingualModel"}
    change_config(folder, architectures=["BilingualModel"], model_type="bilingual", auto_map=code)
    write_modules(folder, f"{OLD_MODULES}.Normalize")


@builder
def jina_reranker_v1(folder: Path) -> None:
    from tests.models.jina_bert import save_jina

    heads = ("ForMaskedLM", "ForQuestionAnswering", "ForSequenceClassification", "ForTokenClassification")
    auto_map = {"AutoModel": "modeling_bert.JinaBertModel"}
    auto_map |= {f"AutoModel{head}": f"modeling_bert.JinaBert{head}" for head in heads}
    _, tensors = save_jina(folder, architectures=["JinaBertForSequenceClassification"])
    change_config(folder, architectures=["JinaBertModel"], auto_map=auto_map)
    head = {name: tensors[f"classifier.{name}"][:1].clone() for name in ("weight", "bias")}
    rewrite_weights(folder, lambda stored: stored | {f"classifier.{name}": value for name, value in head.items()})


@builder
def nv_embed_v2(folder: Path) -> None:
    save_tiny(folder, "MistralModel", sliding_window=None, is_causal=False)
    config = json.loads((folder / "config.json").read_text())
    text = {key: value for key, value in config.items() if key != "is_causal"}
    text |= {"model_type": "bidir_mistral", "sliding_window": 4}
    sizes = {"num_latents_value": 5, "num_cross_heads": 2, "cross_dim_head": 6, "latent_dim": 32, "hidden_dim": 32}
    flags = {"add_eos": True, "add_pad_token": True, "is_mask_instruction": True, "mask_type": "b"}
    code = {"AutoConfig": "configuration_nvembed.NVEmbedConfig", "AutoModel": "modeling_nvembed.NVEmbedModel"}
    names = {"architectures": ["NVEmbedModel"], "model_type": "nvembed", "auto_map": code, "hidden_size": 32}
    latents = {"model_type": "latent_attention", **sizes}
    write_json(folder, "config.json", names | flags | {"latent_attention_config": latents, "text_config": text})
    shapes = {
        "latents": (5, 32),
        "cross_attend_blocks.0.norm.weight": (32,),
        "cross_attend_blocks.0.norm.bias": (32,),
        "cross_attend_blocks.0.norm_context.weight": (32,),
        "cross_attend_blocks.0.norm_context.bias": (32,),
        "cross_attend_blocks.0.fn.to_q.weight": (12, 32),
        "cross_attend_blocks.0.fn.to_kv.weight": (24, 32),
        "cross_attend_blocks.0.fn.to_out.weight": (32, 12),
        "cross_attend_blocks.1.norm.weight": (32,),
        "cross_attend_blocks.1.norm.bias": (32,),
        "cross_attend_blocks.1.fn.net.0.weight": (256, 32),
        "cross_attend_blocks.1.fn.net.0.bias": (256,),
        "cross_attend_blocks.1.fn.net.2.weight": (32, 128),
        "cross_attend_blocks.1.fn.net.2.bias": (32,),
    }
    generator = torch.Generator().manual_seed(5)
    made = {f"latent_attention_model.{name}": torch.randn(s, generator=generator) * 0.3 for name, s in shapes.items()}
    rewrite_weights(folder, lambda tensors: made | {f"embedding_model.{name}": x for name, x in tensors.items()})


@builder
def codesage_small_v2(folder: Path) -> None:
    save_tiny(folder, "GPT2Model")
    old = json.loads((folder / "config.json").read_text())
    names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    names |= {"n_inner": "intermediate_size", "n_positions": "max_position_embeddings"}
    code = {"AutoConfig": "config_codesage.CodeSageConfig", "AutoModel": "modeling_codesage.CodeSageModel"}
    config = {"architectures": ["CodeSage"], "auto_map": code, "activation_function": "gelu_new", "vocab_size": 160}
    write_json(folder, "config.json", config | {new: old[name] for name, new in names.items()})


@builder
def sfr_embedding_code_2b(folder: Path) -> None:
    save_tiny(folder, "Gemma2Model")
    code = {"AutoConfig": "configuration_gemma2.CodeXEmbedConfig", "AutoModel": "modeling_gemma2.CodeXEmbedModel2B"}
    names = {"architectures": ["CodeXEmbedModel2B"], "model_type": "codexembed2b"}
    change_config(folder, drop=("layer_types",), auto_map=code, **names)
    rewrite_weights(folder, lambda tensors: {f"model.{name}": tensor for name, tensor in tensors.items()})
    write_modules(folder, pooling="lasttoken")


@builder
def bidirlm_0_6b(folder: Path) -> None:
    save_tiny(folder, "Qwen3Model", is_causal=False)
    _make_bidirlm(folder)


@builder
def bidirlm_1b(folder: Path) -> None:
    save_tiny(folder, "Gemma3TextModel", is_causal=False)
    _make_bidirlm(folder)


def _make_bidirlm(folder: Path) -> None:
    code = {"AutoConfig": "configuration_bidirlm.BidirLMConfig", "AutoModel": "modeling_bidirlm.BidirLMModel"}
    names = {"architectures": ["BidirLMModel"], "model_type": "bidirlm"}
    change_config(folder, drop=("is_causal",), auto_map=code, **names)
    write_modules(folder, f"{OLD_MODULES}.Normalize")


def save_t5_tokenizer(folder: Path) -> None:
    """Save a Unigram tokenizer as T5 has it: a space before every word, EOS after the text."""
    words = [*WORDS, "true", "false", "Query:", "Document:", "Relevant:", "Premise:", "Hypothesis:"]
    pieces = [*(f"\u2581{word}" for word in words), "\u2581", *LETTERS, *PUNCTUATION]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *((piece, -float(len(pieces))) for piece in pieces)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "T5TokenizerFast", "model_max_length": 512}
    write_json(folder, "tokenizer_config.json", settings | T5_TOKENS)


@builder
def monot5_base_msmarco(folder: Path) -> None:
    save_tiny(folder, "T5ForConditionalGeneration", decoder_start_token_id=0, num_decoder_layers=2)
    save_t5_tokenizer(folder)
    change_config(folder, _name_or_path="castorini/monot5-base-msmarco")


@builder
def hallucination_evaluation_model(folder: Path) -> None:
    save_tiny(folder, "T5ForTokenClassification", num_labels=2, feed_forward_proj="gated-gelu")
    save_t5_tokenizer(folder)
    old = json.loads((folder / "config.json").read_text())
    sizes = {key: old[key] for key in ("vocab_size", "d_model", "d_ff", "d_kv", "num_layers", "num_heads")}
    sizes |= {key: value for key, value in old.items() if key.startswith("relative_attention")}  # tiny, so written here
    code = {"AutoModelForSequenceClassification": "modeling_hhem_v2.HHEMv2ForSequenceClassification"}
    names = {"architectures": ["HHEMv2ForSequenceClassification"], "auto_map": code, "model_type": "HHEMv2Config"}
    write_json(folder, "config.json", names | {"foundation": "google/flan-t5-base"} | sizes)
    rewrite_weights(folder, lambda tensors: {f"t5.{name}": tensor for name, tensor in tensors.items()})


@builder
def bge_reranker_v2_minicpm_layerwise(folder: Path) -> None:
    sizes = {"num_hidden_layers": 4, "embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 1.0}
    save_tiny(folder, "GraniteModel", attention_multiplier=8**-0.5, max_position_embeddings=256, **sizes)
    multipliers = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    scales = {"scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 8}
    heads = {"start_layer": 2, "head_multi": True, "head_type": "simple"}
    names = {"architectures": ["LayerWiseMiniCPMForCausalLM"], "model_type": "minicpm"}
    code = {"AutoModelForCausalLM": "modeling_minicpm_reranker.LayerWiseMiniCPMForCausalLM"}
    change_config(folder, drop=multipliers, auto_map=code, **names, **scales, **heads)
    generator = torch.Generator().manual_seed(7)
    made = {f"lm_head.{n}.linear_head.weight": torch.randn(1, 32, generator=generator) for n in range(3)}
    rewrite_weights(folder, lambda tensors: made | {f"model.{name}": tensor for name, tensor in tensors.items()})


@builder
def jina_reranker_v3_5(folder: Path) -> None:
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"]
    windows = {"use_sliding_window": True, "sliding_window": 4, "num_hidden_layers": 6}
    save_tiny(folder, "Qwen3ForCausalLM", layer_types=[*kinds, "full_attention"], **windows)
    change_config(folder, architectures=["JinaForRanking"], auto_map={"AutoModel": "modeling.JinaForRanking"})
    generator = torch.Generator().manual_seed(8)
    shapes = {"projector.0.weight": (16, 32), "projector.2.weight": (16, 16)}
    made = {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}
    rewrite_weights(folder, lambda tensors: tensors | made)


@builder
def harrier_oss_v1_270m(folder: Path) -> None:
    save_tiny(folder, "Gemma3TextModel")
    write_modules(folder, f"{OLD_MODULES}.Normalize", pooling="lasttoken")
    prompt = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "
    write_json(folder, "config_sentence_transformers.json", {"prompts": {"web_search_query": prompt}})


@builder
def f2llm_v2_80m(folder: Path) -> None:
    save_tiny(folder, "Qwen3Model")
    write_modules(folder, f"{OLD_MODULES}.Normalize", pooling="lasttoken")


@builder
def granite_embedding_311m_multilingual_r2(folder: Path) -> None:
    save_tiny(folder, "ModernBertModel")
    write_modules(folder, f"{OLD_MODULES}.Normalize", pooling="cls_token")


@builder
def roberta_base_squad2(folder: Path) -> None:
    save_tiny(folder, "RobertaForQuestionAnswering")


@builder
def funnel_small_base(folder: Path) -> None:
    _write_refused(folder, "FunnelBaseModel", "funnel")


@builder
def cde_small_v1(folder: Path) -> None:
    _write_refused(folder, "ContextualDocumentEmbeddingTransformer", "contextual_document_embedding_transformer")


@builder
def armorm_llama3_8b(folder: Path) -> None:
    save_tiny(folder, "LlamaModel", max_position_embeddings=256)
    save_tokenizer(folder, LLAMA3_TOKENS, two_types=False)
    write_json(folder, "tokenizer_config.json", LLAMA3_TOKENS | {"chat_template": LLAMA3_TEMPLATE})
    sizes = {"num_objectives": 5, "gating_temperature": 3, "gating_hidden_dim": 16, "gating_n_hidden": 2}
    code = {"AutoModelForSequenceClassification": "modeling_custom.LlamaForRewardModelWithGating"}
    labels = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    change_config(folder, architectures=["LlamaForRewardModelWithGating"], auto_map=code, **sizes, **labels)
    shapes = {"regression_layer.weight": (5, 32), "reward_transform_matrix": (5, 5), "gating.logit_scale": (1,)}
    shapes |= {
        "gating.layers.0.weight": (16, 32),
        "gating.layers.1.weight": (16, 16),
        "gating.layers.2.weight": (5, 16),
    }
    shapes |= {"gating.layers.0.bias": (16,), "gating.layers.1.bias": (16,), "gating.layers.2.bias": (5,)}
    generator = torch.Generator().manual_seed(9)
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    rewrite_weights(folder, lambda tensors: made | {f"model.{name}": tensor for name, tensor in tensors.items()})


@builder
def qrm_llama3_1_8b(folder: Path) -> None:
    """nicolinho/QRM-Llama3.1-8B: seven quantiles of each objective; two hidden layers with batch normalization."""
    armorm_llama3_8b(folder)
    code = {"AutoModelForSequenceClassification": "modeling_custom.LlamaForRewardModelWithGating31"}
    change_config(folder, architectures=["LlamaForRewardModelWithGating31"], auto_map=code, num_quantiles=7)
    generator = torch.Generator().manual_seed(11)
    shapes: dict[str, tuple[int, ...]] = {"regression_layer.weight": (35, 32)}
    for layer, shape in ((0, (16, 32)), (3, (16, 16)), (6, (5, 16))):
        shapes[f"gating.layers.{layer}.weight"] = shape
        for name in ("weight", "bias", "running_mean", "running_var") if layer < 6 else ():
            shapes[f"gating.layers.{layer + 2}.{name}"] = (16,)
    shapes["gating.layers.6.bias"] = (5,)
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made = {name: tensor.abs() if "running_var" in name else tensor for name, tensor in made.items()}
    made |= {f"gating.layers.{layer}.num_batches_tracked": torch.tensor(3) for layer in (2, 5)}
    rewrite_weights(
        folder,
        lambda tensors: {name: tensor for name, tensor in tensors.items() if "gating.layers" not in name} | made,
    )


@builder
def bge_reranker_v2_5_gemma2_lightweight(folder: Path) -> None:
    save_tiny(folder, "Gemma2Model", num_hidden_layers=4, sliding_window=4, max_position_embeddings=256)
    names = {"architectures": ["CostWiseGemmaForCausalLM"], "model_type": "cost_wise_gemma"}
    code = {"AutoConfig": "gemma_config.CostWiseGemmaConfig", "AutoModel": "gemma_model.CostWiseGemmaModel"}
    code["AutoModelForCausalLM"] = "gemma_model.CostWiseGemmaForCausalLM"
    heads = {"start_layer": 2, "layer_sep": 1, "layer_wise": True, "final_logit_softcapping": 2.0}
    change_config(folder, drop=("layer_types",), auto_map=code, **names, **heads)
    generator = torch.Generator().manual_seed(10)
    made = {f"lm_head.{n}.linear_head.weight": torch.randn(1, 32, generator=generator) for n in range(3)}
    rewrite_weights(folder, lambda tensors: made | {f"model.{name}": tensor for name, tensor in tensors.items()})


def _write_refused(folder: Path, architecture: str, model_type: str) -> None:
    """Write a config.json and a tokenizer; the weights of a model that is refused are not read."""
    write_json(folder, "config.json", {"architectures": [architecture], "model_type": model_type, **ENCODER})
    save_tokenizer(folder)


@builder
def specter2_adapter(folder: Path) -> None:
    """Write the config of an adapter of the library Adapters, whose weights are in pytorch_adapter.bin."""
    config = {"non_linearity": "relu", "reduction_factor": 16, "ln_after": False, "mh_adapter": True}
    adapter = {"config": config, "hidden_size": 768, "name": "[PRX]", "version": "0.0.0"}
    base = {"model_class": "BertAdapterModel", "model_name": "allenai/specter2_base", "model_type": "bert"}
    (folder / "adapter_config.json").write_text(json.dumps({**adapter, **base}))
