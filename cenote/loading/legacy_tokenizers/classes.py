"""Which tokenizer class reads the vocabulary of a checkpoint; file names alone do not decide it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cenote.loading.tokenizer_class import GENERIC_CLASSES

# tokenizer class -> values of model_type in config.json, for checkpoints that name no class
MODEL_TYPES = {
    "BertTokenizer": "bert distilbert electra mobilebert convbert dpr ernie layoutlm megatron-bert new nezha "
    "nomic_bert qdqbert realm retribert squeezebert visual_bert",
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": "roberta bart data2vec-text ibert led lilt longformer mega mra roberta-prelayernorm",
    "DebertaTokenizer": "deberta",
    "CLIPTokenizer": "clip",
    "GPT2Tokenizer": "gpt2 gpt_neo gptj opt",
    "Qwen2Tokenizer": "qwen2 qwen2_moe qwen2_vl qwen2_5_vl qwen3 qwen3_moe qwen3_vl",
    "XLMRobertaTokenizer": "xlm-roberta xlm-roberta-xl gte jina_embeddings_v3 xmod",
    "CamembertTokenizer": "camembert",
    "MBartTokenizer": "mbart",
    "DebertaV2Tokenizer": "deberta-v2",
    "T5Tokenizer": "t5 longt5 mt5 switch_transformers",
    "AlbertTokenizer": "albert yoso",
    "XLNetTokenizer": "xlnet",
    "LlamaTokenizer": "llama mistral mixtral",
    "InternLM2Tokenizer": "internlm2",
    "EsmTokenizer": "esm",
    "RoFormerTokenizer": "roformer",
}
CLASS_OF_MODEL_TYPE = {kind: name for name, kinds in MODEL_TYPES.items() for kind in kinds.split()}


class TokenizerClass(NamedTuple):
    name: str  # without "Fast"
    file: str  # the file that decided it


def find_tokenizer_class(settings: Mapping[str, Any], config: Mapping[str, Any]) -> TokenizerClass | None:
    """Return the class named by tokenizer_config.json, else by config.json, else the one of its model_type."""
    for file, values in (("tokenizer_config.json", settings), ("config.json", config)):
        name = values.get("tokenizer_class")
        if isinstance(name, str) and name and name not in GENERIC_CLASSES:  # which say nothing about the vocabulary
            return TokenizerClass(name.removesuffix("Fast"), file)
    name = CLASS_OF_MODEL_TYPE.get(str(config.get("model_type")))
    return None if name is None else TokenizerClass(name, "config.json")
