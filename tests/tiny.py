"""Tiny checkpoints with random weights, written to a folder as Transformers writes them: a few kilobytes each.

    reference = tiny_bert(tmp_path)                            # or tiny_qwen3, tiny_roberta_classifier, ...
    llm = LLM(str(tmp_path), dtype="float32")

Each function returns the Transformers model that it saved. The vocabulary has some words, all letters and digits;
`changes` go into config.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import PreTrainedModel

from cenote.packed_batch import PackedBatch

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # more threads only slow down models of this size

VOCABULARY_TEXT = (
    "yes no the a of and in is it to for on with not this that what who where when how one two three red green blue "
    "cat dog bird fish river city berlin paris people live song book query passage search good bad new old big small"
)
WORDS = VOCABULARY_TEXT.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
PUNCTUATION = ".,:;!?-'\"()<>/"
TEXTS = [
    "the cat is in the city",
    "a",
    "how big is the old river in berlin and who live in it?",
    "the dog",
    "a red bird, a blue fish",
    "the cat is not in the city",
    "two",
]

# lengths in several orders: equal ones next to each other and apart, single tokens; no special tokens
SEQUENCES = [
    [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18],
    [20],
    [9, 8, 7],
    [30, 31, 32],
    [7],
    list(range(40, 77)),
    [33, 32, 31],
    [50, 9, 50, 9, 50, 9, 50, 9, 50, 9, 50, 9],
]

BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_TOKENS = {
    "bos_token": "<s>",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "mask_token": "<mask>",
}
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
QWEN_TOKENS = {"pad_token": "<|endoftext|>", "unk_token": "<unk>", "eos_token": "<|im_end|>"}
TOKENS: dict[str, dict[str, str]] = {
    "bert": BERT_TOKENS,
    "modernbert": BERT_TOKENS,
    "roberta": ROBERTA_TOKENS,
    "xlm-roberta": ROBERTA_TOKENS,
    **dict.fromkeys(("camembert", "mpnet"), ROBERTA_TOKENS),
    **dict.fromkeys(("distilbert", "albert", "electra", "deberta", "deberta-v2"), BERT_TOKENS),
    **dict.fromkeys(("eurobert", "nomic_bert", "gte"), BERT_TOKENS),
    "jina_embeddings_v3": ROBERTA_TOKENS,
    **dict.fromkeys(("t5", "mt5"), T5_TOKENS),
    "qwen2": QWEN_TOKENS,
    "qwen3": QWEN_TOKENS,
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "ministral3", "cwm", "granite", "phi3", "glm", "gpt2"), QWEN_TOKENS
    ),
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "olmo", "olmo2", "olmo3"), QWEN_TOKENS),
    **dict.fromkeys(("qwen2_moe", "qwen3_moe", "mixtral", "lfm2", "jamba", "deepseek_v3"), QWEN_TOKENS),
    "openai_privacy_filter": QWEN_TOKENS,
}

# models whose tokenizers set token_type_ids to 1 for the second text of a pair
TWO_TYPES = ("bert", "albert", "electra", "deberta-v2", "nomic_bert", "gte")

VOCAB_SIZE = 160
ENCODER: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
}
DEBERTA = ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
T5: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 12,
    "num_layers": 2,
    "num_heads": 4,
} | {
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "max_position_embeddings": 66,
}
DECODER = ENCODER | {"num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 2}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SIZES: dict[str, dict[str, Any]] = {
    "bert": ENCODER | {"pad_token_id": 0},
    "roberta": ENCODER,
    "xlm-roberta": ENCODER,
    **dict.fromkeys(("camembert", "mpnet"), ENCODER),
    "distilbert": {"vocab_size": VOCAB_SIZE, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
    | {"max_position_embeddings": 66},
    "albert": ENCODER | {"embedding_size": 16, "num_hidden_layers": 3},
    "electra": ENCODER | {"embedding_size": 16},
    "deberta": DEBERTA,
    # few buckets, so that short texts have several distances per bucket
    "deberta-v2": DEBERTA | {"position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "eurobert": ENCODER
    | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 4},
    **dict.fromkeys(("nomic_bert", "gte"), ENCODER | {"pad_token_id": 0, "type_vocab_size": 2}),
    "jina_embeddings_v3": ENCODER,
    **dict.fromkeys(("t5", "mt5"), T5),
    # one layer with full attention, then two with a window of 3 tokens on either side
    "modernbert": ENCODER
    | {"num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3}
    | {"bos_token_id": 2, "eos_token_id": 3},
    "qwen2": DECODER,
    "qwen3": DECODER | {"head_dim": 12},
    **dict.fromkeys(("llama", "mistral", "ministral", "granite", "phi3", "olmo", "olmo2"), DECODER),
    **dict.fromkeys(("gemma", "cwm", "glm"), DECODER | {"head_dim": 12}),
    # trained on a length that the texts exceed, so that the attention scale grows
    "ministral3": DECODER
    | {"head_dim": 12}
    | {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 500.0, "factor": 8.0}
        | {"original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.5}
    },
    # some layers have a sliding window shorter than the texts
    "gemma2": DECODER | {"head_dim": 12, "sliding_window": 4},
    "gemma3_text": DECODER | {"head_dim": 12, "sliding_window": 6, "sliding_window_pattern": 2},
    "olmo3": DECODER | {"num_hidden_layers": 4, "sliding_window": 4},
    "gpt2": {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_inner": 48, "n_layer": 2, "n_head": 4, "n_positions": 66}
    | {"bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0},
    "qwen2_moe": DECODER | EXPERTS | {"shared_expert_intermediate_size": 40},
    "qwen3_moe": DECODER | EXPERTS | {"head_dim": 12},
    "mixtral": DECODER | {"num_local_experts": 6},
    "lfm2": DECODER
    | {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3}
    | {"block_multiple_of": 16, "tie_word_embeddings": False},
    "jamba": DECODER
    | {"num_hidden_layers": 4, "num_experts": 6, "attn_layer_period": 3, "attn_layer_offset": 1}
    | {"mamba_d_state": 5},
    "deepseek_v3": DECODER
    | EXPERTS
    | {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
    | {"num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 12}
    | {"qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6},
    # a sliding window shorter than the texts, and a limit that activations of this size exceed
    "openai_privacy_filter": DECODER | EXPERTS | {"head_dim": 8, "sliding_window": 3, "swiglu_limit": 0.5},
}


def save_tiny(folder: Path, model: str | type[PreTrainedModel], *, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """Save a model of a Transformers class and its tokenizer; return the model in eval mode."""
    model_class = getattr(transformers, model) if isinstance(model, str) else model
    kind = model_class.config_class.model_type
    reference = model_class(model_class.config_class(**SIZES[kind] | changes)).eval().requires_grad_(False)
    randomize(reference, seed)
    reference.save_pretrained(folder)
    save_tokenizer(
        folder, TOKENS[kind], max_length=reference.config.max_position_embeddings, two_types=kind in TWO_TYPES
    )
    return reference


def randomize(model: torch.nn.Module, seed: int = 0, std: float = 0.3) -> None:
    """Set random weights, large enough that an error in any part of the model changes the output."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        centre = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std + centre)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(5.2, 5.4, len(buffer)))


def save_tokenizer(
    folder: Path, tokens: Mapping[str, str] = BERT_TOKENS, *, max_length: int = 64, two_types: bool = True
) -> Tokenizer:
    """Save a WordPiece tokenizer with a small vocabulary and the special tokens of a model family."""
    special = list(dict.fromkeys(tokens.values()))
    singles = [*WORDS, *LETTERS, *PUNCTUATION]
    vocabulary = list(dict.fromkeys([*special, *singles, *(f"##{letter}" for letter in LETTERS)]))
    assert len(vocabulary) <= VOCAB_SIZE
    ids = {token: row for row, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=tokens["unk_token"]))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    if (cls := tokens.get("cls_token")) is not None:
        sep, second = tokens["sep_token"], int(two_types)
        between = "" if cls == "[CLS]" else f"{sep} "  # RoBERTa has two separators between the texts
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} {between}$B:{second} {sep}:{second}",
            special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, **tokens}
    settings["model_input_names"] = ["input_ids", "attention_mask"] + ["token_type_ids"] * two_types
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def compute_hidden_states(
    reference: PreTrainedModel,
    sequences: Sequence[Sequence[int]] = SEQUENCES,
    types: Sequence[Sequence[int]] | None = None,
) -> list[Tensor]:
    """Return the last hidden states of every sequence, run alone: [tokens, hidden] each."""
    kinds = [{} if types is None else {"token_type_ids": torch.tensor([row])} for row in types or sequences]
    with torch.inference_mode():
        return [
            reference.base_model(input_ids=torch.tensor([list(ids)]), **kind).last_hidden_state[0]
            for ids, kind in zip(sequences, kinds, strict=True)
        ]


def compute_logits(reference: PreTrainedModel, sequences: Sequence[Sequence[int]] = SEQUENCES) -> list[Tensor]:
    """Return the logits of every sequence, run alone."""
    with torch.inference_mode():
        return [reference(input_ids=torch.tensor([list(ids)])).logits[0] for ids in sequences]


def change_config(folder: Path, *, drop: tuple[str, ...] = (), file: str = "config.json", **changes: Any) -> None:
    """Change entries of a saved config.json, or of another JSON file."""
    path = folder / file
    values = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps(values | changes))


def tiny_bert(folder: Path, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "BertModel", **changes)


def tiny_bert_classifier(folder: Path, num_labels: int = 3, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "BertForSequenceClassification", num_labels=num_labels, **changes)


def tiny_cross_encoder(folder: Path) -> PreTrainedModel:
    return tiny_bert_classifier(folder, num_labels=1)


def tiny_bert_token_classifier(folder: Path, num_labels: int = 3, **changes: Any) -> PreTrainedModel:
    """A classifier of every token."""
    return save_tiny(folder, "BertForTokenClassification", num_labels=num_labels, **changes)


def tiny_roberta_classifier(folder: Path, num_labels: int = 3, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "RobertaForSequenceClassification", num_labels=num_labels, **changes)


def tiny_modernbert(folder: Path, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "ModernBertModel", **changes)


def tiny_modernbert_classifier(folder: Path, num_labels: int = 3, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "ModernBertForSequenceClassification", num_labels=num_labels, **changes)


def tiny_qwen3(folder: Path, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "Qwen3Model", **changes)


def tiny_qwen3_causal(folder: Path, **changes: Any) -> PreTrainedModel:
    """A causal language model, with an LM head."""
    return save_tiny(folder, "Qwen3ForCausalLM", **changes)


def tiny_qwen3_classifier(folder: Path, num_labels: int = 3, **changes: Any) -> PreTrainedModel:
    return save_tiny(folder, "Qwen3ForSequenceClassification", num_labels=num_labels, **changes)


def tiny_bge_m3(folder: Path, **changes: Any) -> tuple[PreTrainedModel, torch.nn.Linear, torch.nn.Linear]:
    """An XLM-RoBERTa with the two heads of bge-m3: a weight and a vector for every token."""
    reference = save_tiny(folder, "XLMRobertaModel", **changes)
    size = reference.config.hidden_size
    heads = torch.nn.Linear(size, 1).requires_grad_(False), torch.nn.Linear(size, size).requires_grad_(False)
    for seed, (name, head) in enumerate(zip(("sparse_linear", "colbert_linear"), heads, strict=True), start=1):
        randomize(head, seed)
        if name == "sparse_linear":
            head.bias.fill_(0.4)  # about half of the tokens get a weight
        torch.save(head.state_dict(), folder / f"{name}.pt")
    return reference, *heads


def tiny_splade(folder: Path, model: str = "BertForMaskedLM", **pooling: str) -> PreTrainedModel:
    """A masked language model with the files of a sparse encoder of Sentence Transformers."""
    reference = save_tiny(folder, model)
    package = "sentence_transformers.sparse_encoder.models"
    modules = [
        {"type": f"{package}.MLMTransformer", "path": ""},
        {"type": f"{package}.SpladePooling", "path": "1_Splade"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Splade").mkdir()
    (folder / "1_Splade" / "config.json").write_text(json.dumps(pooling))
    return reference


def copy_to_device(batch: PackedBatch, device: str) -> PackedBatch:
    """Copy all tensors of a batch to a device."""
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(batch, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})
