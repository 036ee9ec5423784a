"""Registry of architectures: maps names in config.json to model families, imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig

CheckpointKind = Literal[
    "causal",  # a causal language model, to be converted
    "embed",
    "sequence",  # sequence classification
    "token",  # token classification
    "reward",  # a reward value per token; without a head, the hidden states of all tokens
    "masked",  # masked language model: vocabulary logits per token
    "sparse",  # SPLADE: vocabulary weights per input
    "multi_vector",  # ColBERT: an embedding per token
    "hybrid",  # bge-m3: dense embedding, token embeddings and lexical weights
    "listwise",  # all documents of a query in one prompt
    "entities",  # GLiNER: spans of words are scored against the labels of a request
    "tensors",  # tensors in, tensors out; implemented by a plugin
]
FamilyBuilder = Callable[[HFConfig], Architecture]

# architecture name without suffix -> module:function
FAMILIES = {
    # encoders
    "Bert": "bert:bert",
    "Roberta": "bert:roberta",
    "XLMRoberta": "xlm_roberta:xlm_roberta",
    "Camembert": "bert:roberta",
    "DistilBert": "distilbert:distilbert",
    "MPNet": "mpnet:mpnet",
    "Albert": "albert:albert",
    "Electra": "electra:electra",
    "Deberta": "deberta:deberta",
    "DebertaV2": "deberta:deberta_v2",
    "JinaBert": "jina_bert:jina_bert",
    "T5Encoder": "t5:t5",
    "T5": "t5:t5",
    "MT5": "t5:mt5",
    "MT5Encoder": "t5:mt5",
    "ModernBert": "modernbert:modernbert",
    "ModernVBert": "modernvbert:modernvbert",
    "EuroBert": "eurobert:eurobert",
    "NomicBert": "nomic_bert:nomic_bert",
    "New": "gte:gte",
    "GteNew": "gte:gte",
    "Gte": "gte:gte",
    "JinaEmbeddingsV3": "jina_v3:jina_v3",
    "OpenAIPrivacyFilter": "privacy_filter:privacy_filter",
    # text and image encoders
    "CLIP": "clip:clip",
    "Siglip": "siglip:siglip",
    "Siglip2": "siglip:siglip2",
    "NomicVision": "nomic_vision:nomic_vision",
    "JinaCLIP": "jina_clip:jina_clip",
    # decoders
    "Llama": "llama:llama",
    "LlamaBidirectional": "llama:bidirectional_llama",
    "Mistral": "llama:mistral",
    "Ministral": "llama:mistral",
    "Ministral3": "ministral3:ministral3",
    "Ministral3Bidirectional": "ministral3:bidirectional_ministral3",
    "MistralBidirectional": "llama:bidirectional_llama",
    "MistralBiDirectional": "llama:bidirectional_llama",
    "Aquila": "llama:llama",
    "Cwm": "cwm:cwm",
    "InternLM": "llama:llama",
    "InternLM3": "llama:llama",
    "LLaMA": "llama:llama",
    "Xverse": "llama:llama",
    "DeciLM": "decilm:decilm",
    "TeleChat": "telechat:telechat2",
    "TeleChat2": "telechat:telechat2",
    "Granite": "granite:granite",
    "Qwen2": "qwen:qwen2",
    "Qwen3": "qwen:qwen3",
    "Qwen2VL": "qwen2_vl:qwen2_vl",
    "Qwen2_5_VL": "qwen2_5_vl:qwen2_5_vl",
    "Qwen3VL": "qwen3_vl:qwen3_vl",
    "Qwen3VLMoe": "qwen3_vl_moe:qwen3_vl_moe",
    "Qwen3_5": "qwen3_5:qwen3_5",
    "Qwen3_5Text": "qwen3_5:qwen3_5",
    "Qwen2Moe": "qwen_moe:qwen2_moe",
    "Qwen3Moe": "qwen_moe:qwen3_moe",
    "Mixtral": "mixtral:mixtral",
    "Gemma": "gemma:gemma",
    "Gemma2": "gemma:gemma2",
    "Gemma3": "gemma:gemma3",
    "Gemma3Text": "gemma:gemma3",
    "PaliGemma": "paligemma:paligemma",
    "Idefics3": "idefics3:idefics3",
    "Phi3": "phi3:phi3",
    "GPT2": "gpt2:gpt2",
    "InternLM2": "internlm2:internlm2",
    "Olmo": "olmo:olmo",
    "Olmo2": "olmo:olmo2",
    "Olmo3": "olmo:olmo3",
    "Glm": "glm:glm",
    "Lfm2": "lfm2:lfm2",
    "Lfm2Bidirectional": "lfm2:bidirectional_lfm2",
    "Jamba": "jamba:jamba",
    "DeepseekV3": "deepseek:deepseek_v3",
    "DeepseekV3Bidirectional": "deepseek:bidirectional_deepseek_v3",
}

# architecture names that do not follow the suffix rule -> module:function and kind
EXACT_NAMES: dict[str, tuple[str, CheckpointKind]] = {
    "HF_ColBERT": ("colbert:colbert_bert", "multi_vector"),
    "ColBERTModel": ("colbert:colbert_bert", "multi_vector"),  # the name in older overrides of vLLM
    "ColBERTModernBertModel": ("modernbert:modernbert", "multi_vector"),
    "ColBERTJinaRobertaModel": ("colbert:colbert_jina", "multi_vector"),
    "ColBERTLfm2Model": ("lfm2:lfm2", "multi_vector"),
    "ColQwen3": ("qwen3_vl:colqwen3", "multi_vector"),
    "ColQwen3_5": ("qwen3_5:colqwen3_5", "multi_vector"),
    "OpsColQwen3Model": ("qwen3_vl:colqwen3", "multi_vector"),
    "Qwen3VLNemotronEmbedModel": ("qwen3_vl:nemotron_colembed", "multi_vector"),
    "ColPali": ("paligemma:original_colpali", "multi_vector"),
    "ColQwen2": ("colqwen:colqwen2", "multi_vector"),
    "ColQwen2_5": ("colqwen:colqwen2_5", "multi_vector"),
    "ColIdefics3": ("idefics3:colidefics3", "multi_vector"),
    "ColPaliForRetrieval": ("paligemma:colpali", "multi_vector"),
    "ColModernVBertForRetrieval": ("modernvbert:colmodernvbert", "multi_vector"),
    "Contriever": ("bert:contriever", "embed"),
    "DPRContextEncoder": ("bert:dpr", "embed"),
    "DPRQuestionEncoder": ("bert:dpr", "embed"),
    "BilingualModel": ("xlm_roberta:bilingual", "embed"),
    "BgeM3EmbeddingModel": ("xlm_roberta:xlm_roberta", "hybrid"),
    "LayerWiseMiniCPMForCausalLM": ("minicpm:layerwise_minicpm", "sequence"),
    "CostWiseGemmaForCausalLM": ("gemma_reranker:lightweight_gemma", "sequence"),
    "LlamaForRewardModelWithGating": ("armorm:armorm", "sequence"),
    "LlamaForRewardModelWithGating31": ("qrm:qrm", "sequence"),
    "HHEMv2ForSequenceClassification": ("hhem:hhem", "sequence"),
    "BidirLMModel": ("gemma:bidirlm", "embed"),
    "CodeSage": ("gpt2:codesage", "embed"),
    "CodeXEmbedModel2B": ("gemma:codexembed", "embed"),
    "NVEmbedModel": ("nv_embed:nv_embed", "embed"),
    "LlamaNemotronVLModel": ("nemotron_vl:nemotron_vl", "embed"),
    "LlamaNemotronVLForSequenceClassification": ("nemotron_vl:nemotron_vl", "sequence"),
    "LlavaNextForConditionalGeneration": ("llava_next:llava_next", "causal"),
    "Phi3VForCausalLM": ("phi3v:phi3v", "causal"),
    "T5Gemma2ForConditionalGeneration": ("t5gemma2:t5gemma2", "causal"),
    "GmeQwen2VL": ("gme:gme_qwen2_vl", "embed"),
    "GritLM": ("llama:gritlm", "embed"),
    "VoyageQwen3BidirectionalEmbedModel": ("qwen:voyage", "embed"),
    "PPLXQwen3Model": ("qwen:pplx", "embed"),
    "JinaEmbeddingsV4Model": ("jina_v4:jina_v4", "embed"),
    "JinaEmbeddingsV5Model": ("jina_v5:jina_v5", "embed"),
    "JinaForRanking": ("qwen:jina_ranking", "listwise"),
    "JinaVLForRanking": ("qwen2_vl:jina_vl", "sequence"),
    "MLQwen3Model": ("querit:querit", "sequence"),
    "ColQwen2ForRetrieval": ("qwen2_vl:colqwen2", "multi_vector"),
    "StaticEmbedding": ("static_embedding:static_embedding", "embed"),
    "StaticModel": ("static_embedding:static_embedding", "embed"),  # model2vec
    "SparseStaticEmbedding": ("static_embedding:sparse_static_embedding", "sparse"),
    # names that loading/layouts/v_splade.py gives to the routes of V-SPLADE
    "VSplade": ("v_splade:v_splade", "sparse"),
    "VSpladeQuery": ("v_splade:v_splade_query", "sparse"),
    "GLiNER": ("gliner:gliner", "entities"),  # the name that loading/layouts/gliner.py gives to gliner_config.json
    "GLiNER2": ("gliner2:gliner2", "entities"),  # likewise, by loading/layouts/gliner2.py
    "GLiNER2.5": ("gliner2_5:gliner2_5", "entities"),
    "GPT2LMHeadModel": ("gpt2:gpt2", "causal"),
    "Qwen2ForProcessRewardModel": ("qwen:qwen2_process_reward", "reward"),
    "Qwen2ForRewardModel": ("qwen:qwen2_reward", "reward"),
}

# the first matching suffix determines the kind
KIND_SUFFIXES: tuple[tuple[str, CheckpointKind], ...] = (
    ("ForCausalLM", "causal"),
    ("ForConditionalGeneration", "causal"),
    ("ChatModel", "causal"),
    ("LMHeadModel", "causal"),
    ("ForMaskedLM", "masked"),
    ("ForPreTraining", "embed"),
    ("ForTextEncoding", "embed"),
    ("SpladeSparseEmbeddingModel", "sparse"),
    ("EmbeddingModel", "embed"),
    ("ForSequenceClassification", "sequence"),
    ("ForTokenClassification", "token"),
    ("ForTextClassification", "sequence"),
    ("ForImageClassification", "sequence"),
    ("ForVideoClassification", "sequence"),
    ("ForAudioClassification", "sequence"),
    ("ClassificationModel", "sequence"),
    ("ForRewardModeling", "reward"),
    ("ForRewardModel", "reward"),
    ("RewardModel", "reward"),
    ("Model", "embed"),
)

# model types whose activations overflow float16, including those run by the Transformers backend
NO_FLOAT16 = (
    *("gemma2", "gemma3", "gemma3_text", "glm4", "plamo2", "t5", "mt5", "t5gemma2"),
    *("codexembed2b", "bidirlm", "cost_wise_gemma", "HHEMv2Config"),  # Gemma and T5 under other names
)
# model types whose max_position_embeddings already includes the rope scaling
PRESCALED_ROPE = ("gemma3", "gemma3_text", "gemma3n", "gemma3n_text")
# max_position_embeddings of model types whose config.json leaves it out, inside that of a multimodal model
DEFAULT_LENGTHS = {"gemma": 8192, "gemma2": 8192, "modernbert": 8192}


@dataclass(frozen=True, slots=True)
class ArchitectureEntry:
    """An architecture name of config.json with its family and kind."""

    name: str
    family: FamilyBuilder
    kind: CheckpointKind
    uses_transformers: bool = False  # whether the Transformers backend runs it


def names_from_model_type(model_type: str) -> list[str]:
    """Return `*Model` architectures for a model_type, for configs without `architectures`."""
    bare = model_type.replace("-", "").replace("_", "").lower()
    return [f"{stem}Model" for stem in FAMILIES if stem.lower() == bare]


class UnknownArchitecture(LoadError):
    """None of the architecture names is registered."""


def kind_from_name(name: str) -> CheckpointKind:
    """Return the kind by the suffix of an architecture name; "embed" if no suffix matches."""
    return next((kind for suffix, kind in KIND_SUFFIXES if name.endswith(suffix)), "embed")


def find_registered(name: str) -> tuple[str, CheckpointKind] | None:
    """Return the module:function and the kind of an architecture name; None if it is not registered."""
    if name in EXACT_NAMES:
        return EXACT_NAMES[name]
    stems = [(name.removesuffix(suffix), kind) for suffix, kind in KIND_SUFFIXES if name.endswith(suffix)]
    return next(((FAMILIES[stem], kind) for stem, kind in stems if stem in FAMILIES), None)


def find_architecture(names: list[str], source: str = "config.json") -> ArchitectureEntry:
    """Return the entry of the first registered name; raise UnknownArchitecture if there is none."""
    for name in names:
        if (registered := find_registered(name)) is not None:
            path, kind = registered
            return ArchitectureEntry(name, _import_family(path), kind)
    known = ", ".join([*(f"{stem}*" for stem in FAMILIES), *EXACT_NAMES])
    raise UnknownArchitecture(
        f"{source}: unknown architectures {names or '[]'}; expected one of: {known}. "
        'To load a checkpoint as one of these, use hf_overrides={"architectures": ["..."]}'
    )


def _import_family(path: str) -> FamilyBuilder:
    module, function = path.split(":")
    family: FamilyBuilder = getattr(import_module(f"cenote.models.{module}"), function)
    return family
