"""Which tokenizer class Transformers 5 uses for a checkpoint with a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# classes that use tokenizer.json as it is
GENERIC_CLASSES = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "PythonBackend")

# Class that Transformers registers for values of model_type. Those of checkpoints without tokenizer.json differ
# (legacy_tokenizers/classes.py): there a class is needed to read the vocabulary, also where tokenizer.json needs none.
REGISTERED_TYPES = {
    "BertTokenizer": "align bert blip bros chinese_clip convbert distilbert electra ernie flava git layoutlm "
    "megatron-bert mobilebert nezha nomic_bert qdqbert realm retribert squeezebert visual_bert",
    "DPRQuestionEncoderTokenizer": "dpr",
    "MPNetTokenizer": "mpnet",
    "RobertaTokenizer": "bart bridgetower clap data2vec-text ibert lilt longformer mega mra roberta "
    "roberta-prelayernorm",
    "LEDTokenizer": "led",
    "DebertaTokenizer": "deberta",
    "GPT2Tokenizer": "blip-2 codegen dbrx gpt2 gpt_neo gptj opt phi starcoder2",
    "Qwen2Tokenizer": "colqwen2 internvl ovis2 qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe qwen2_vl qwen3 "
    "qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl qwen3_vl_moe",
    "Qwen3_5Tokenizer": "qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text",
    "XLMRobertaTokenizer": "gte jina_embeddings_v3 metaclip_2 xlm-roberta xmod",
    "CamembertTokenizer": "camembert",
    "T5Tokenizer": "mt5 switch_transformers t5",
    "AlbertTokenizer": "albert yoso",
    "RoFormerTokenizer": "roformer",
    "DebertaV2Tokenizer": "deberta-v2",
    "GemmaTokenizer": "gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text t5gemma",
    "TokenizersBackend": "glm glm4 gpt_bigcode granite granitemoe granitemoehybrid internlm2 jamba llava llava_next "
    "minicpm3 minicpmv ministral ministral3 mistral mistral3 mixtral modernbert modernbert-decoder nemotron "
    "nystromformer olmo2 olmo3 phi3 phi3_v phimoe pixtral smolvlm stablelm umt5 xlm-roberta-xl",
}
CLASS_OF_MODEL_TYPE = {kind: name for name, kinds in REGISTERED_TYPES.items() for kind in kinds.split()}
# model types whose registered class is used even if the files name another
OVERRIDING_TYPES = ("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text")
# classes that return token_type_ids without being asked
TOKEN_TYPE_CLASSES = (
    *("BertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer", "LayoutLMTokenizer"),
    *("SqueezeBertTokenizer", "LxmertTokenizer", "DPRContextEncoderTokenizer", "DPRQuestionEncoderTokenizer"),
    *("DebertaTokenizer", "DebertaV2Tokenizer"),
)
# classes without them, some of which read the vocabulary of a BERT model
TYPELESS_CLASSES = (
    *("DistilBertTokenizer", "MPNetTokenizer", "RobertaTokenizer", "XLMRobertaTokenizer", "CamembertTokenizer"),
    *("T5Tokenizer", "GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "GemmaTokenizer", "BertJapaneseTokenizer"),
)


def returns_token_types(settings: Mapping[str, Any], class_name: str | None) -> bool:
    """Whether the tokenizer of Transformers returns token types without being asked."""
    names = settings.get("model_input_names")
    return "token_type_ids" in names if isinstance(names, list) else class_name in TOKEN_TYPE_CLASSES


def has_token_types(settings: Mapping[str, Any], class_name: str | None) -> bool:
    """Whether pairs have token types.

    ALBERT, XLNet and classes that are not listed have them, although Transformers 5 does not return them: their models
    were trained with token types.
    """
    if isinstance(settings.get("model_input_names"), list):
        return returns_token_types(settings, class_name)
    return class_name is not None and class_name not in TYPELESS_CLASSES


def resolve_tokenizer_class(
    settings: Mapping[str, Any], config: Mapping[str, Any], *, is_byte_level: bool
) -> str | None:
    """Return the name of the class without "Fast"; None for a generic class, which uses tokenizer.json as it is."""
    model_type = str(config.get("model_type"))
    registered = CLASS_OF_MODEL_TYPE.get(model_type)
    named = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if not isinstance(named, str):
        return _specific(registered)
    # PreTrainedTokenizerFast is a class of its own, not the fast form of another
    named = named if named in GENERIC_CLASSES else named.removesuffix("Fast")
    if named == "LlamaTokenizer" and is_byte_level:  # Llama 3: the class is that of Llama 2
        return None
    if registered is None or has_custom_tokenizer(settings):
        return _specific(named)
    if registered in GENERIC_CLASSES:
        return None
    return registered if model_type in OVERRIDING_TYPES else _specific(named)


def has_custom_tokenizer(settings: Mapping[str, Any]) -> bool:
    """Whether the repository brings the code of a tokenizer, which is not run."""
    auto_map = settings.get("auto_map")
    return isinstance(auto_map, list) or (isinstance(auto_map, Mapping) and auto_map.get("AutoTokenizer") is not None)


def _specific(name: str | None) -> str | None:
    return None if name in GENERIC_CLASSES else name
