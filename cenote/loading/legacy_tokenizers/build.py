"""Build the tokenizer of a checkpoint without tokenizer.json by its tokenizer class."""

from __future__ import annotations

from dataclasses import replace

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.legacy_tokenizers import byte_level, chinese, japanese, llama, sentencepiece, word_bpe, wordpiece
from cenote.loading.legacy_tokenizers.classes import find_tokenizer_class
from cenote.loading.legacy_tokenizers.source import (
    BERT_NAMES,
    ROBERTA_NAMES,
    WAY_OUT,
    LegacyTokenizer,
    SpecialTokens,
    TokenizerRecipe,
    TokenizerSettings,
    TokenizerSource,
    set_bert_template,
    set_roberta_template,
    wrap_tokenizer_errors,
)

VOCABULARY_FILES = (
    *("vocab.txt", "vocab.json", "bpe.codes"),
    *("sentencepiece.bpe.model", "spm.model", "spiece.model", "tokenizer.model"),
)
_BERT = TokenizerRecipe("vocab.txt", BERT_NAMES, wordpiece.build_wordpiece, set_bert_template)
_ROBERTA = TokenizerRecipe(
    "vocab.json", ROBERTA_NAMES, byte_level.build_byte_level, set_roberta_template, mask_takes_space=True
)
_XLM_ROBERTA = TokenizerRecipe(
    "sentencepiece.bpe.model",
    ROBERTA_NAMES,
    sentencepiece.build_xlm_roberta,
    set_roberta_template,
    mask_takes_space=True,
)
_LLAMA = TokenizerRecipe("tokenizer.model", llama.LLAMA_NAMES, llama.build_llama, adds_bos=True)
_BERTWEET = TokenizerRecipe("vocab.txt", ROBERTA_NAMES, word_bpe.build_bertweet, set_roberta_template)
RECIPES = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"), _BERT
    ),
    **dict.fromkeys(
        ("DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer", "LayoutLMTokenizer", "SqueezeBertTokenizer"),
        _BERT,
    ),
    "MPNetTokenizer": replace(
        _BERT, names=wordpiece.MPNET_NAMES, set_template=set_roberta_template, mask_takes_space=True
    ),
    "EsmTokenizer": TokenizerRecipe("vocab.txt", wordpiece.ESM_NAMES, wordpiece.build_esm),
    "BertJapaneseTokenizer": replace(_BERT, build=japanese.build_bert_japanese),
    "RoFormerTokenizer": replace(_BERT, build=chinese.build_roformer),
    "BertweetTokenizer": _BERTWEET,
    "PhobertTokenizer": replace(_BERTWEET, build=word_bpe.build_phobert),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "LEDTokenizer", "LongformerTokenizer"), _ROBERTA),
    "DebertaTokenizer": replace(_ROBERTA, names=BERT_NAMES, set_template=set_bert_template),
    "HerbertTokenizer": TokenizerRecipe("vocab.json", ROBERTA_NAMES, byte_level.build_herbert, set_bert_template),
    "CLIPTokenizer": TokenizerRecipe("vocab.json", byte_level.CLIP_NAMES, byte_level.build_clip),
    "GPT2Tokenizer": TokenizerRecipe("vocab.json", byte_level.GPT2_NAMES, byte_level.build_gpt2),
    "Qwen2Tokenizer": TokenizerRecipe("vocab.json", byte_level.GPT2_NAMES, byte_level.build_qwen2),
    "XLMRobertaTokenizer": _XLM_ROBERTA,
    "CamembertTokenizer": replace(_XLM_ROBERTA, build=sentencepiece.build_camembert),
    "MBartTokenizer": replace(
        _XLM_ROBERTA, names=sentencepiece.MBART_NAMES, build=sentencepiece.build_mbart, set_template=None
    ),
    "DebertaV2Tokenizer": TokenizerRecipe("spm.model", BERT_NAMES, sentencepiece.build_deberta_v2, set_bert_template),
    "T5Tokenizer": TokenizerRecipe("spiece.model", sentencepiece.T5_NAMES, sentencepiece.build_t5),
    "AlbertTokenizer": TokenizerRecipe(
        "spiece.model", sentencepiece.ALBERT_NAMES, sentencepiece.build_albert, set_bert_template
    ),
    "XLNetTokenizer": TokenizerRecipe(
        "spiece.model", sentencepiece.XLNET_NAMES, sentencepiece.build_xlnet, mask_takes_space=True
    ),
    "LlamaTokenizer": _LLAMA,
    "MistralTokenizer": _LLAMA,
    "InternLM2Tokenizer": replace(_LLAMA, names=llama.INTERNLM2_NAMES, build=llama.build_internlm2),
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
    recipe = RECIPES.get(chosen.name)
    if recipe is None:
        raise LoadError(
            f"{checkpoint.folder / chosen.file}: {chosen.name} is not supported without a tokenizer.json; {WAY_OUT}"
        )
    names = recipe.names | special_tokens
    source = TokenizerSource(checkpoint, chosen.name, chosen.file, settings, config, names)
    path = source.require_vocabulary(recipe.file)
    with wrap_tokenizer_errors(path):
        tokenizer = recipe.build(source, path)
        if recipe.set_template is not None:
            recipe.set_template(tokenizer, names)
    return LegacyTokenizer(tokenizer, names, recipe)
