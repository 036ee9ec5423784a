"""Build the tokenizer of a checkpoint without tokenizer.json by its tokenizer class."""

from __future__ import annotations

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.legacy_tokenizers import byte_level, chinese, japanese, llama, sentencepiece, word_bpe, wordpiece
from cenote.loading.legacy_tokenizers.classes import find_tokenizer_class
from cenote.loading.legacy_tokenizers.source import (
    WAY_OUT,
    LegacyTokenizer,
    SpecialTokens,
    TokenizerSettings,
    TokenizerSource,
)

VOCABULARY_FILES = (
    *("vocab.txt", "vocab.json", "bpe.codes"),
    *("sentencepiece.bpe.model", "spm.model", "spiece.model", "tokenizer.model"),
)
BUILDERS = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"),
        wordpiece.build_bert,
    ),
    **dict.fromkeys(
        ("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer", "LayoutLMTokenizer", "SqueezeBertTokenizer"),
        wordpiece.build_bert,
    ),
    "MPNetTokenizer": wordpiece.build_mpnet,
    "EsmTokenizer": wordpiece.build_esm,
    "BertJapaneseTokenizer": japanese.build_bert_japanese,
    "RoFormerTokenizer": chinese.build_roformer,
    "BertweetTokenizer": word_bpe.build_bertweet,
    "PhobertTokenizer": word_bpe.build_phobert,
    **dict.fromkeys(
        ("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer"), byte_level.build_roberta
    ),
    "DebertaTokenizer": byte_level.build_deberta,
    "HerbertTokenizer": byte_level.build_herbert,
    "CLIPTokenizer": byte_level.build_clip,
    "GPT2Tokenizer": byte_level.build_gpt2,
    "Qwen2Tokenizer": byte_level.build_qwen2,
    "XLMRobertaTokenizer": sentencepiece.build_xlm_roberta,
    "CamembertTokenizer": sentencepiece.build_camembert,
    "MBartTokenizer": sentencepiece.build_mbart,
    "DebertaV2Tokenizer": sentencepiece.build_deberta_v2,
    "T5Tokenizer": sentencepiece.build_t5,
    "AlbertTokenizer": sentencepiece.build_albert,
    "XLNetTokenizer": sentencepiece.build_xlnet,
    "LlamaTokenizer": llama.build_llama,
    "MistralTokenizer": llama.build_llama,
    "InternLM2Tokenizer": llama.build_internlm2,
}


def build_legacy_tokenizer(
    checkpoint: Checkpoint, settings: TokenizerSettings, special_tokens: SpecialTokens
) -> LegacyTokenizer | None:
    """Build from the vocabulary files of the tokenizer class; None if the checkpoint has no vocabulary."""
    found = [file for file in VOCABULARY_FILES if checkpoint.find_file(file) is not None]
    if not found:
        return None
    config = checkpoint.read_json_object("config.json")
    chosen = find_tokenizer_class(settings, config)
    if chosen is None:
        raise LoadError(
            f"{checkpoint.folder}: the tokenizer class of {found[0]} is unknown: tokenizer_config.json and config.json "
            f"have no tokenizer_class, and model_type {config.get('model_type')!r} does not tell it; {WAY_OUT}"
        )
    if chosen.name == "AlbertTokenizer" and "vocab.txt" in found and "spiece.model" not in found:
        chosen = chosen._replace(name="BertTokenizer")  # Chinese ALBERT models have the vocabulary of BERT
    build = BUILDERS.get(chosen.name)
    if build is None:
        raise LoadError(
            f"{checkpoint.folder / chosen.file}: {chosen.name} is not supported without a tokenizer.json; {WAY_OUT}"
        )
    return build(TokenizerSource(checkpoint, chosen.name, chosen.file, settings, config, special_tokens))
