"""Published checkpoints without tokenizer.json: vocabulary files as published, in small, and tiny weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import transformers

from tests import vocabularies as vocabulary
from tests.layouts.registry import builder
from tests.tiny import randomize
from tests.vocabularies import write_json

ENCODER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
DEBERTA_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ESM_VOCABULARY = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
CHINESE_VOCABULARY = "[PAD] [UNK] [CLS] [SEP] [MASK] 东 京 東 the quick brown fox a é , ."
NER_LABELS = {0: "O", 1: "I-LOC", 2: "I-PER", 3: "I-MISC", 4: "I-ORG"}
NLI_LABELS = {0: "CONTRADICTION", 1: "NEUTRAL", 2: "ENTAILMENT"}


def _save(folder: Path, name: str, **config: Any) -> None:
    with warnings.catch_warnings(action="ignore"):  # of torch.jit, when DeBERTa is imported
        model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**{"vocab_size": 1000, **config})).eval()
    randomize(model)
    model.save_pretrained(folder)


@builder
def camembert_ner(folder: Path) -> None:
    vocabulary.fairseq_pieces(folder)
    ids = {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 1}
    sizes = ENCODER | {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    labels = {"id2label": NER_LABELS, "label2id": {label: row for row, label in NER_LABELS.items()}}
    _save(folder, "CamembertForTokenClassification", **sizes, **ids, **labels)
    write_json(folder, "tokenizer_config.json", model_max_length=512, do_lower_case=True)


@builder
def deberta_base_mnli(folder: Path) -> None:
    vocabulary.byte_level_pieces(folder, DEBERTA_TOKENS)
    attention = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
    sizes = ENCODER | {"max_position_embeddings": 512, "type_vocab_size": 0, "max_relative_positions": -1}
    _save(folder, "DebertaForSequenceClassification", **sizes, **attention, id2label=NLI_LABELS)
    write_json(folder, "tokenizer_config.json", do_lower_case=False, vocab_type="gpt2")


@builder
def albert_base_v2_sst2(folder: Path) -> None:
    vocabulary.albert_pieces(folder)
    sizes = ENCODER | {"embedding_size": 16, "num_hidden_groups": 1, "max_position_embeddings": 512}
    _save(folder, "AlbertForSequenceClassification", **sizes, bos_token_id=2, eos_token_id=3, pad_token_id=0)


@builder
def albert_chinese(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(CHINESE_VOCABULARY.split()))
    sizes = ENCODER | {"embedding_size": 16, "num_hidden_groups": 1, "max_position_embeddings": 512}
    _save(folder, "AlbertModel", vocab_size=len(CHINESE_VOCABULARY.split()), **sizes)


@builder
def roformer_chinese_char(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(CHINESE_VOCABULARY.split()))
    sizes = ENCODER | {"embedding_size": 32, "max_position_embeddings": 512, "pad_token_id": 0}
    _save(folder, "RoFormerModel", vocab_size=len(CHINESE_VOCABULARY.split()), **sizes)
    write_json(folder, "tokenizer_config.json", tokenizer_class="RoFormerTokenizer", do_lower_case=True)


@builder
def xlnet_base_cased_mnli(folder: Path) -> None:
    vocabulary.xlnet_pieces(folder)
    _save(folder, "XLNetForSequenceClassification", d_model=32, n_layer=2, n_head=4, d_inner=48, id2label=NLI_LABELS)


@builder
def distilbart_mnli(folder: Path) -> None:
    vocabulary.byte_level_pieces(folder, ROBERTA_TOKENS)
    layers = {"encoder_layers": 2, "encoder_ffn_dim": 48, "encoder_attention_heads": 4}
    layers |= {name.replace("encoder", "decoder"): size for name, size in layers.items()} | {"decoder_layers": 1}
    ids = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "decoder_start_token_id": 2}
    sizes = {"d_model": 32, "max_position_embeddings": 1024, **layers}
    _save(folder, "BartForSequenceClassification", **sizes, **ids, id2label=NLI_LABELS)


@builder
def phobert_base(folder: Path) -> None:
    vocabulary.word_pieces(folder)
    sizes = ENCODER | {"max_position_embeddings": 258, "type_vocab_size": 1}
    _save(folder, "RobertaModel", **sizes, tokenizer_class="PhobertTokenizer")


@builder
def esm2(folder: Path) -> None:
    (folder / "vocab.txt").write_text("\n".join(ESM_VOCABULARY.split()))
    options = {"position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False}
    ids = {"pad_token_id": 1, "mask_token_id": 32, "cls_token_id": 0, "eos_token_id": 2}
    sizes = ENCODER | {"max_position_embeddings": 1026}
    _save(folder, "EsmModel", vocab_size=33, **sizes, **options, **ids)
    tokens = {"eos_token": "<eos>", "cls_token": "<cls>", "unk_token": "<unk>", "mask_token": "<mask>"}
    write_json(folder, "tokenizer_config.json", tokenizer_class="EsmTokenizer", pad_token="<pad>", **tokens)
