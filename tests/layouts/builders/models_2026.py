"""Layouts of models published in 2025 and 2026, right or refused by name."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.cross_encoder.modules import LogitScore
from tokenizers import Tokenizer, processors

from tests.layouts.builders.st_formats import SPARSE, write_json, write_modules
from tests.layouts.builders.text_families import OLD_MODULES, rewrite_weights
from tests.layouts.builders.text_families import write_modules as write_pooling_modules
from tests.layouts.checkpoint_files import write_checkpoint
from tests.layouts.registry import builder
from tests.models import colbert, colpali, nemotron_vl, qwen2_vl, qwen3_5, v_splade
from tests.tiny import DECODER, ENCODER, change_config, save_tiny, save_tokenizer

# in the style of zerank-2: the query is the system message
ZERANK_TEMPLATE = (
    "{%- for message in messages -%}{%- set role = {'query': 'system', 'document': 'user'}[message['role']] -%}"
    "{{ '<|im_start|>' + role + ' ' + message['content'] + '<|im_end|> ' }}{%- endfor -%}"
    "{{ '<|im_start|>assistant' }}"
)


@builder
def splade_code(folder: Path) -> None:
    """naver/splade-code-06B: a bidirectional Qwen3 whose LM head weighs the vocabulary."""
    save_tiny(folder, "Qwen3ForCausalLM", is_causal=False, tie_word_embeddings=True)
    auto_map = {"AutoModelForCausalLM": "splade.Splade", "AutoModelForMaskedLM": "splade.Qwen3ForCausalLM"}
    change_config(folder, auto_map={"AutoConfig": "splade.SpladeConfig", **auto_map})
    write_modules(folder, (f"{SPARSE}.MLMTransformer", ""), (f"{SPARSE}.SpladePooling", "1_SpladePooling"))
    write_json(folder / "1_SpladePooling/config.json", {"pooling_strategy": "max", "activation_function": "relu"})
    settings = {"model_type": "SparseEncoder", "prompts": {"query": "", "document": ""}, "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", settings)


@builder
def splade_code_first_revision(folder: Path) -> None:
    """naver/splade-code-06B before it had Sentence Transformers files."""
    names = {"architectures": ["Splade"], "model_type": "splade", "model_name_or_path": "Qwen/Qwen3-0.6B"}
    write_json(folder / "config.json", {**names, "archi_type": "decoder", "bidirectional": True})
    save_tokenizer(folder)


@builder
def querit_4b(folder: Path) -> None:
    """Querit/Querit-4B: a head of two labels beside a Qwen3 language model, and [CLS] among the added tokens."""
    save_tiny(folder, "Qwen3ForCausalLM", tie_word_embeddings=True, max_position_embeddings=256)
    change_config(folder, architectures=["MLQwen3Model"])
    generator = torch.Generator().manual_seed(4)
    head = {"head.weight": torch.randn(2, 32, generator=generator) * 0.1, "head.bias": torch.tensor([0.3, -0.4])}
    rewrite_weights(folder, lambda tensors: tensors | head)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["[CLS]"])
    # as in Qwen3-Embedding, whose EOS is not part of the pair
    last = tokenizer.id_to_token(0)
    assert last is not None
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {last}", special_tokens=[(last, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))


@builder
def v_splade_router(folder: Path) -> None:
    """naver/v-splade-*: known by its weights; Sentence Transformers files with code of their own lie beside them."""
    v_splade.save_v_splade(folder, with_modules=True)


@builder
def v_splade_first_revision(folder: Path) -> None:
    v_splade.save_v_splade(folder)


@builder
def bimodernvbert(folder: Path) -> None:
    """ModernVBERT/bimodernvbert: the dense model, with the architecture that V-SPLADE names."""
    names = {"architectures": ["BiModernVBert"], "model_type": "modernvbert"}
    write_json(folder / "config.json", {**names, "text_config": ENCODER, "vision_config": {}})
    save_tokenizer(folder)


QWEN3_LAYOUT = {
    "class": "Qwen3ForCausalLM",
    "model_max_length": 131072,
    "tokenizer": "qwen2",  # without the EOS of Qwen3-Embedding
    "config": {
        **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True},
        **{"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "num_hidden_layers": 36},
        **{"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1000000},
        **{"max_position_embeddings": 40960, "vocab_size": 151936, "hidden_act": "silu"},
    },
}


@builder
def zembed_1(folder: Path) -> None:
    """zeroentropy/zembed-1: prompts that are the start of a conversation, and its end after every text."""
    write_checkpoint(folder, {**QWEN3_LAYOUT, "max_seq_length": 32768}, tiny=True)
    start = "<|im_start|>system\n{}<|im_end|>\n<|im_start|>user\n"
    prompts = {name: start.format(name) for name in ("query", "document")}
    settings = {"prompts": prompts, "default_prompt_name": "document", "suffix": "<|im_end|>\n"}
    write_json(folder / "config_sentence_transformers.json", {**settings, "similarity_fn_name": "cosine"})
    write_modules(
        folder,
        ("modeling_zembed.ZembedTransformer", ""),
        (f"{OLD_MODULES}.Pooling", "1_Pooling"),
        (f"{OLD_MODULES}.Normalize", "2_Normalize"),
    )
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 32, "pooling_mode_lasttoken": True})


@builder
def zerank_1_small(folder: Path) -> None:
    """zeroentropy/zerank-1-small: no files of Sentence Transformers; its code replaces CrossEncoder.predict."""
    write_checkpoint(folder, {**QWEN3_LAYOUT, "tokenizer": "qwen3-answers"}, tiny=True)
    change_config(folder, auto_map={"AutoConfig": "modeling_zeranker.ZEConfig"})
    (folder / "README.md").write_text("---\npipeline_tag: text-ranking\nlibrary_name: sentence-transformers\n---\n")


@builder
def octen_embedding(folder: Path) -> None:
    """Octen/Octen-Embedding-*: Normalize has a file, which Sentence Transformers 6 does not accept."""
    save_tiny(folder, "Qwen3Model")
    write_pooling_modules(folder, f"{OLD_MODULES}.Normalize", pooling="lasttoken")
    (folder / "sentence_bert_config.json").unlink()
    write_json(folder / "2_Normalize/config.json", {"normalize_embeddings": True})


@builder
def zerank_2(folder: Path) -> None:
    """zeroentropy/zerank-2: the logit of one token after a chat template, without an activation."""
    base = folder / "base"
    base.mkdir()
    save_tiny(base, "Qwen3ForCausalLM", tie_word_embeddings=True, max_position_embeddings=512)
    (base / "chat_template.jinja").write_text(ZERANK_TEMPLATE)
    model = CrossEncoder(modules=[Transformer(str(base), transformer_task="text-generation"), LogitScore(20)])
    model.save_pretrained(str(folder), create_model_card=False)
    for file in base.iterdir():
        file.unlink()
    base.rmdir()


# query and document are messages whose content is a list of parts
PAIR_TEMPLATE = """{%- for message in messages -%}<|im_start|>{{ message.role }} {% for part in message.content -%}
{%- if part.type == "image" -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor %}<|im_end|> {% endfor -%}<|im_start|>assistant"""


def save_logit_score(folder: Path, true_token_id: int, false_token_id: int) -> Any:
    """Save Qwen3.5 with the files of a CrossEncoder that subtracts two logits; return the model."""
    model = qwen3_5.save(folder)
    (folder / "chat_template.jinja").write_text(PAIR_TEMPLATE)
    base = "sentence_transformers.base.modules.transformer.Transformer"
    write_modules(folder, (base, ""), ("sentence_transformers.cross_encoder.modules.LogitScore", "1_LogitScore"))
    tokens = {"true_token_id": true_token_id, "false_token_id": false_token_id}
    write_json(folder / "1_LogitScore/config.json", {**tokens, "module_input_name": "causal_logits"})
    forward = {"method": "forward", "method_output_name": "logits"}
    modalities = {"text": forward, "message": {**forward, "format": "structured"}}
    encoder = {"transformer_task": "any-to-any", "modality_config": modalities, "module_output_name": "causal_logits"}
    write_json(folder / "sentence_bert_config.json", encoder)
    settings = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity", "prompts": {}}
    write_json(folder / "config_sentence_transformers.json", settings)
    return model


@builder
def lighton_rerank_pw(folder: Path) -> None:
    """lightonai/LightOn-rerank-PW-*, if its files are those that Sentence Transformers 6 writes for its scores."""
    save_logit_score(folder, 20, 21)


@builder
def lighton_rerank_lw(folder: Path) -> None:
    """lightonai/LightOn-rerank-LW-*: a language model that writes the order of documents."""
    qwen3_5.save(folder)
    change_config(folder, _name_or_path="lightonai/LightOn-rerank-LW-0.8B")


@builder
def mlateon(folder: Path) -> None:
    """lightonai/mLateOn: three projections in PyLate's files; the first two add their projected input."""
    colbert.save_pylate(folder, "ModernBertModel", colbert.Rules(expands=False))
    for layer, (size_in, size_out) in enumerate(((32, 64), (64, 32), (32, 12)), start=1):
        names = ("linear.weight", "residual.weight")[: 2 if layer < 3 else 1]
        weights = {name: colbert.noise(size_out, size_in) * (row + 1) for row, name in enumerate(names)}
        colbert.write_dense(folder, f"{layer}_Dense", weights, use_residual=layer < 3)
    kinds = ((f"{layer}_Dense", "pylate.models.Dense.Dense") for layer in (1, 2, 3))
    colbert.write_modules(folder, *kinds)


@builder
def colqwen3_5_320(folder: Path) -> None:
    """VultronRetriever: vectors of 320 numbers."""
    qwen3_5.save_retriever(folder, size=320, retrieval_attention_contract="causal")


@builder
def colpali_hf(folder: Path) -> None:
    colpali.save_colpali_hf(folder)


@builder
def colqwen2_hf(folder: Path) -> None:
    qwen2_vl.save_colqwen2_hf(folder)


CTXL_TEMPLATE = (
    "Check whether a given document contains information helpful to answer the query."
    "{% for m in messages if m.role == 'document' %}\n<Document> {{ m.content }}\n{% endfor %}"
    "{% for m in messages if m.role == 'query' %}<Query> {{ m.content }}{% endfor %}"
    "{% for m in messages if m.role == 'system' %} {{ m.content }}{% endfor %} ??"
)


def save_ctxl(folder: Path, template: str | None = CTXL_TEMPLATE) -> Any:
    """Save the logit of vocabulary id 0 as a CrossEncoder with a chat template; return it."""
    with TemporaryDirectory() as base:
        save_tiny(Path(base), "Qwen3ForCausalLM", max_position_embeddings=1024)
        if template is not None:
            (Path(base) / "chat_template.jinja").write_text(template)
        modules = [Transformer(base, transformer_task="text-generation"), LogitScore(0)]
        model = CrossEncoder(modules=modules, activation_fn=torch.nn.Identity(), device="cpu")
        model.save_pretrained(str(folder), create_model_card=False)
    return model


@builder
def ctxl_with_modules(folder: Path) -> None:
    """ContextualAI/ctxl-rerank-v2-*, if its files are those that Sentence Transformers 6 writes for its scores."""
    save_ctxl(folder)


@builder
def llama_nemotron_rerank_vl(folder: Path) -> None:
    nemotron_vl.save_reranker(nemotron_vl.save_embedder(folder), folder)


@builder
def nemotron_3_5_rerank(folder: Path) -> None:
    """nvidia/Nemotron-3.5-Rerank-8B-BF16: Pixtral and a bidirectional Ministral 3, with a score head."""
    names = {"architectures": ["Mistral3ForSequenceClassification"], "model_type": "mistral3"}
    write_json(folder / "config.json", {**names, "is_causal": False, "text_config": {"model_type": "ministral3"}})
    save_tokenizer(folder)


THINKER = {
    "architectures": ["Qwen2_5OmniThinkerForConditionalGeneration"],
    "model_type": "qwen2_5_omni_thinker",
    **{"text_config": DECODER, "vision_config": {}, "audio_config": {}},
}


@builder
def lco_embedding_omni(folder: Path) -> None:
    """LCO-Embedding/LCO-Embedding-Omni-*: the last token after a summary in one word."""
    write_json(folder / "config.json", THINKER)
    save_tokenizer(folder)


@builder
def e5_omni(folder: Path) -> None:
    """Haon-Chen/e5-omni-*: the same class; an end of text is appended and pooled."""
    write_json(folder / "config.json", THINKER)
    write_pooling_modules(folder, f"{OLD_MODULES}.Normalize", pooling="lasttoken")
    save_tokenizer(folder)


@builder
def omni_embed_nemotron(folder: Path) -> None:
    write_json(folder / "config.json", THINKER | {"architectures": ["NVOmniEmbedModel"], "model_type": "nvomniembed"})
    save_tokenizer(folder)


@builder
def bidirlm_omni(folder: Path) -> None:
    write_json(folder / "config.json", THINKER | {"architectures": ["BidirLMOmniModel"], "model_type": "bidirlm_omni"})
    save_tokenizer(folder)
