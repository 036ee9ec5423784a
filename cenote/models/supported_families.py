"""Model families by the stem of their architecture names, with example models, for docs/models.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cenote.models.registry import CheckpointKind

VS_TRANSFORMERS = "Transformers 5.22"
VS_BOTH_LAYOUTS = "Transformers 5.22, with its weight names and the published ones"
VS_RENAMED_LLAMA = "Transformers' Llama with renamed weights"
VS_INDEPENDENT = "an independent implementation"
VS_CROSS_ENCODER = "Sentence Transformers' CrossEncoder"
VS_MERGED_ADAPTER = "Transformers below the projection, with the adapter merged"
VS_SENTENCE_TRANSFORMERS = "Sentence Transformers 6.2"
VS_PYLATE = "PyLate's steps, with Transformers"

ENCODER_SUFFIXES = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM")
DECODER_SUFFIXES = ("Model", "ForCausalLM", "ForSequenceClassification", "ForTokenClassification")
LANGUAGE_MODEL_SUFFIXES = ("Model", "ForCausalLM")
VISION_LANGUAGE_SUFFIXES = ("Model", "ForConditionalGeneration", "ForSequenceClassification")


@dataclass(frozen=True, slots=True)
class SupportedFamily:
    """The architecture names of one family (stem and suffixes), with example models."""

    suffixes: tuple[str, ...]
    verified_with: str
    models: Mapping[str, str] = field(default_factory=dict)  # by suffix
    kinds: Mapping[str, CheckpointKind] = field(default_factory=dict)  # by suffix, if the suffix implies another


# by stem, in the order of the registry
SUPPORTED_FAMILIES = {
    "Bert": SupportedFamily(
        (*ENCODER_SUFFIXES, "SpladeSparseEmbeddingModel"),
        VS_TRANSFORMERS,
        {
            "Model": "sentence-transformers/all-MiniLM-L6-v2, BAAI/bge-base-en-v1.5, intfloat/e5-small, "
            "thenlper/gte-large, Snowflake/snowflake-arctic-embed-m-v1.5",
            "ForSequenceClassification": "cross-encoder/ms-marco-MiniLM-L-6-v2",
            "ForTokenClassification": "boltuix/NeuroBERT-NER",
            "ForMaskedLM": "google-bert/bert-base-uncased, naver/splade-v3 (sparse, by its files)",
            "SpladeSparseEmbeddingModel": "naver/splade-v3 with vLLM's hf_overrides",
        },
    ),
    "Roberta": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "Model": "sentence-transformers/all-roberta-large-v1, ibm-granite/granite-embedding-30m-english",
            "ForSequenceClassification": "cross-encoder/quora-roberta-base",
            "ForTokenClassification": "Jean-Baptiste/roberta-large-ner-english",
            "ForMaskedLM": "FacebookAI/roberta-base",
        },
    ),
    "XLMRoberta": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "Model": "intfloat/multilingual-e5-large, Snowflake/snowflake-arctic-embed-l-v2.0, "
            "BAAI/bge-m3 (three kinds of vectors, by its files), jinaai/jina-embeddings-v3 (rotary, five adapters)",
            "ForSequenceClassification": "BAAI/bge-reranker-v2-m3, jinaai/jina-reranker-v2-base-multilingual",
            "ForTokenClassification": "Davlan/xlm-roberta-base-ner-hrl",
            "ForMaskedLM": "FacebookAI/xlm-roberta-base",
        },
    ),
    "Camembert": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_TRANSFORMERS,
        {"Model": "dangvantuan/sentence-camembert-base", "ForTokenClassification": "Jean-Baptiste/camembert-ner"},
    ),
    "DistilBert": SupportedFamily(
        (*ENCODER_SUFFIXES, "SpladeSparseEmbeddingModel"),
        VS_TRANSFORMERS,
        {
            "Model": "sentence-transformers/distiluse-base-multilingual-cased-v2",
            "ForSequenceClassification": "distilbert/distilbert-base-uncased-finetuned-sst-2-english",
            "ForMaskedLM": "naver/splade-v3-distilbert (sparse, by its files)",
        },
    ),
    "MPNet": SupportedFamily(
        ENCODER_SUFFIXES, VS_TRANSFORMERS, {"ForMaskedLM": "sentence-transformers/all-mpnet-base-v2 (embeds)"}
    ),
    "Albert": SupportedFamily(
        ENCODER_SUFFIXES, VS_TRANSFORMERS, {"Model": "sentence-transformers/paraphrase-albert-small-v2"}
    ),
    "Electra": SupportedFamily(
        ENCODER_SUFFIXES, VS_TRANSFORMERS, {"ForSequenceClassification": "cross-encoder/ms-marco-electra-base"}
    ),
    "Deberta": SupportedFamily(
        ENCODER_SUFFIXES, VS_TRANSFORMERS, {"ForSequenceClassification": "microsoft/deberta-base-mnli"}
    ),
    "DebertaV2": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_TRANSFORMERS,
        {"ForSequenceClassification": "mixedbread-ai/mxbai-rerank-base-v1, cross-encoder/nli-deberta-v3-base"},
    ),
    "JinaBert": SupportedFamily(
        ("Model", "ForMaskedLM", "ForSequenceClassification"),
        VS_INDEPENDENT,
        {
            "ForMaskedLM": "jinaai/jina-embeddings-v2-base-en, jinaai/jina-embeddings-v2-base-code",
            "ForSequenceClassification": "jinaai/jina-reranker-v1-turbo-en",
        },
        {"ForMaskedLM": "embed"},
    ),
    "T5Encoder": SupportedFamily(
        ("Model",),
        VS_TRANSFORMERS,
        {"Model": "sentence-transformers/gtr-t5-base, sentence-transformers/sentence-t5-base"},
    ),
    "T5": SupportedFamily(
        ("Model", "ForConditionalGeneration", "ForTokenClassification"),
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "google-t5/t5-base (its encoder), castorini/monot5-base-msmarco (reranker)"},
    ),
    "MT5": SupportedFamily(
        ("Model", "ForConditionalGeneration"), VS_TRANSFORMERS, {"ForConditionalGeneration": "google/mt5-base"}
    ),
    "MT5Encoder": SupportedFamily(("Model",), VS_TRANSFORMERS),
    "ModernBert": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "Model": "Alibaba-NLP/gte-modernbert-base, lightonai/GTE-ModernColBERT-v1 (ColBERT, by its files), "
            "cross-encoder/ettin-reranker-150m-v1 (reranker, by its files)",
            "ForSequenceClassification": "Alibaba-NLP/gte-reranker-modernbert-base",
            "ForTokenClassification": "disham993/electrical-ner-ModernBERT-base",
            "ForMaskedLM": "answerdotai/ModernBERT-base",
        },
    ),
    "ModernVBert": SupportedFamily(
        ("Model", "ForMaskedLM"), VS_TRANSFORMERS, {"ForMaskedLM": "ModernVBERT/modernvbert"}, {"ForMaskedLM": "embed"}
    ),
    "EuroBert": SupportedFamily(ENCODER_SUFFIXES, VS_BOTH_LAYOUTS, {"ForMaskedLM": "EuroBERT/EuroBERT-210m"}),
    "NomicBert": SupportedFamily(
        ENCODER_SUFFIXES,
        f"{VS_BOTH_LAYOUTS}; the experts of v2: {VS_INDEPENDENT}",
        {
            "Model": "nomic-ai/nomic-embed-text-v1.5, nomic-ai/nomic-embed-text-v2-moe, nomic-ai/CodeRankEmbed, "
            "Snowflake/snowflake-arctic-embed-m-long"
        },
    ),
    "New": SupportedFamily(
        ENCODER_SUFFIXES,
        VS_BOTH_LAYOUTS,
        {
            "Model": "Alibaba-NLP/gte-multilingual-base, Alibaba-NLP/gte-large-en-v1.5",
            "ForSequenceClassification": "Alibaba-NLP/gte-multilingual-reranker-base",
        },
    ),
    "GteNew": SupportedFamily(
        ("Model", "ForSequenceClassification"),
        VS_BOTH_LAYOUTS,
        {
            "Model": "Alibaba-NLP/gte-multilingual-base with vLLM's hf_overrides",
            "ForSequenceClassification": "Alibaba-NLP/gte-multilingual-reranker-base with vLLM's hf_overrides",
        },
    ),
    "Gte": SupportedFamily(ENCODER_SUFFIXES, VS_BOTH_LAYOUTS, {"Model": "Snowflake/snowflake-arctic-embed-m-v2.0"}),
    "JinaEmbeddingsV3": SupportedFamily(ENCODER_SUFFIXES, VS_BOTH_LAYOUTS, {"Model": "jinaai/jina-embeddings-v3-hf"}),
    "OpenAIPrivacyFilter": SupportedFamily(
        ("Model", "ForTokenClassification"), VS_TRANSFORMERS, {"ForTokenClassification": "openai/privacy-filter"}
    ),
    "CLIP": SupportedFamily(
        ("Model",), VS_TRANSFORMERS, {"Model": "openai/clip-vit-base-patch32, sentence-transformers/clip-ViT-B-32"}
    ),
    "Siglip": SupportedFamily(
        ("Model",), VS_TRANSFORMERS, {"Model": "google/siglip-base-patch16-224, google/siglip2-base-patch16-224"}
    ),
    "Siglip2": SupportedFamily(("Model",), VS_TRANSFORMERS, {"Model": "google/siglip2-base-patch16-naflex"}),
    "NomicVision": SupportedFamily(
        ("Model",),
        "a plain implementation of EVA-02 and its pooling",
        {"Model": "nomic-ai/nomic-embed-vision-v1.5, nomic-ai/nomic-embed-vision-v1 (images only)"},
    ),
    "JinaCLIP": SupportedFamily(
        ("Model",),
        "a plain implementation of EVA-02, JinaBERT and XLM-RoBERTa with rotary positions",
        {"Model": "jinaai/jina-clip-v1, jinaai/jina-clip-v2"},
    ),
    "Llama": SupportedFamily(
        DECODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "ForCausalLM": "peiyi9979/math-shepherd-mistral-7b-prm (by returned_token_ids)",
            "ForSequenceClassification": "Skywork/Skywork-Reward-V2-Llama-3.2-1B",
        },
    ),
    "LlamaBidirectional": SupportedFamily(
        ("Model", "ForSequenceClassification"),
        "Transformers' Llama without its mask",
        {
            "Model": "nvidia/llama-nemotron-embed-1b-v2",
            "ForSequenceClassification": "nvidia/llama-nemotron-rerank-1b-v2",
        },
    ),
    "Mistral": SupportedFamily(
        DECODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "Model": "intfloat/e5-mistral-7b-instruct, Salesforce/SFR-Embedding-Mistral, "
            "Linq-AI-Research/Linq-Embed-Mistral"
        },
    ),
    "Ministral": SupportedFamily(
        DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "mistralai/Ministral-8B-Instruct-2410"}
    ),
    "Ministral3": SupportedFamily(
        LANGUAGE_MODEL_SUFFIXES, VS_TRANSFORMERS, {"Model": "nvidia/Nemotron-3-Embed-1B, nvidia/Nemotron-3-Embed-8B"}
    ),
    "Ministral3Bidirectional": SupportedFamily(("Model",), "Transformers' Ministral 3 without its mask"),
    "MistralBidirectional": SupportedFamily(("Model",), "as LlamaBidirectionalModel (same architecture)"),
    "MistralBiDirectional": SupportedFamily(
        ("Model",), "as LlamaBidirectionalModel (same architecture)", {"Model": "nvidia/NV-EmbedCode-7b-v1"}
    ),
    "Aquila": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA, {"ForCausalLM": "BAAI/AquilaChat-7B"}),
    "Cwm": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "facebook/cwm"}),
    "InternLM": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA, {"ForCausalLM": "internlm/internlm-7b"}),
    "InternLM3": SupportedFamily(
        LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA, {"ForCausalLM": "internlm/internlm3-8b-instruct"}
    ),
    "LLaMA": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA),
    "Xverse": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA, {"ForCausalLM": "xverse/XVERSE-7B-Chat"}),
    "DeciLM": SupportedFamily(
        LANGUAGE_MODEL_SUFFIXES,
        VS_RENAMED_LLAMA,
        {"ForCausalLM": "Deci/DeciLM-7B, nvidia/Llama-3_1-Nemotron-51B-Instruct"},
    ),
    "TeleChat": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, "as TeleChat2ForCausalLM (same architecture)"),
    "TeleChat2": SupportedFamily(LANGUAGE_MODEL_SUFFIXES, VS_RENAMED_LLAMA, {"ForCausalLM": "Tele-AI/TeleChat2-3B"}),
    "Granite": SupportedFamily(
        LANGUAGE_MODEL_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "ibm-granite/granite-3.3-2b-instruct"}
    ),
    "Qwen2": SupportedFamily(
        DECODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "Model": "ssmits/Qwen2-7B-Instruct-embed-base",
            "ForCausalLM": "Alibaba-NLP/gte-Qwen2-1.5B-instruct, mixedbread-ai/mxbai-rerank-base-v2 (reranker)",
            "ForSequenceClassification": "jason9693/Qwen2.5-1.5B-apeach",
        },
    ),
    "Qwen3": SupportedFamily(
        DECODER_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "ForCausalLM": "Qwen/Qwen3-Embedding-0.6B, Qwen/Qwen3-Reranker-0.6B (reranker)",
            "ForSequenceClassification": "tomaarsen/Qwen3-Reranker-0.6B-seq-cls, Skywork/Skywork-Reward-V2-Qwen3-0.6B",
            "ForTokenClassification": "bd2lcco/Qwen3-0.6B-finetuned",
        },
    ),
    "Qwen2VL": SupportedFamily(
        VISION_LANGUAGE_SUFFIXES,
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "MrLight/dse-qwen2-2b-mrl-v1, TIGER-Lab/VLM2Vec-Qwen2VL-2B"},
    ),
    "Qwen2_5_VL": SupportedFamily(
        VISION_LANGUAGE_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "ForConditionalGeneration": "jinaai/jina-embeddings-v4-vllm-retrieval",
            "ForSequenceClassification": "muziyongshixin/Qwen2.5-VL-7B-for-VideoCls",
        },
    ),
    "Qwen3VL": SupportedFamily(
        VISION_LANGUAGE_SUFFIXES,
        VS_TRANSFORMERS,
        {
            "ForConditionalGeneration": "Qwen/Qwen3-VL-Embedding-2B, Qwen/Qwen3-VL-Reranker-2B (reranker)",
            "ForSequenceClassification": "Qwen/Qwen3-VL-Reranker-2B with vLLM's hf_overrides",
        },
    ),
    "Qwen3VLMoe": SupportedFamily(
        ("Model", "ForConditionalGeneration"),
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "Qwen/Qwen3-VL-30B-A3B-Instruct"},
    ),
    "Qwen3_5": SupportedFamily(
        ("Model", "ForConditionalGeneration", "ForCausalLM", "ForSequenceClassification"),
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "Qwen/Qwen3.5-0.8B, Qwen/Qwen3.5-4B"},
    ),
    "Qwen3_5Text": SupportedFamily(("Model", "ForSequenceClassification"), VS_TRANSFORMERS),
    "Qwen2Moe": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "Qwen/Qwen1.5-MoE-A2.7B"}),
    "Qwen3Moe": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "Qwen/Qwen3-30B-A3B"}),
    "Mixtral": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "mistralai/Mixtral-8x7B-v0.1"}),
    "Gemma": SupportedFamily(
        DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "BAAI/bge-reranker-v2-gemma (reranker)"}
    ),
    "Gemma2": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"Model": "BAAI/bge-multilingual-gemma2"}),
    "Gemma3": SupportedFamily(("ForCausalLM",), VS_TRANSFORMERS, {"ForCausalLM": "google/gemma-3-1b-it"}),
    "Gemma3Text": SupportedFamily(
        ("Model", "ForSequenceClassification"), VS_TRANSFORMERS, {"Model": "google/embeddinggemma-300m"}
    ),
    "PaliGemma": SupportedFamily(
        ("Model", "ForConditionalGeneration"),
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "google/paligemma-3b-pt-448, google/paligemma2-3b-pt-448"},
    ),
    "Idefics3": SupportedFamily(
        ("Model", "ForConditionalGeneration"),
        VS_TRANSFORMERS,
        {"ForConditionalGeneration": "HuggingFaceTB/SmolVLM-256M-Instruct"},
    ),
    "Phi3": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "microsoft/Phi-3-mini-4k-instruct"}),
    "GPT2": SupportedFamily(
        ("Model", "ForSequenceClassification", "ForTokenClassification"),
        VS_TRANSFORMERS,
        {"ForSequenceClassification": "nie3e/sentiment-polish-gpt2-small"},
    ),
    "InternLM2": SupportedFamily(
        (*LANGUAGE_MODEL_SUFFIXES, "ForSequenceClassification", "ForRewardModel"),
        VS_RENAMED_LLAMA,
        {"ForCausalLM": "internlm/internlm2-1_8b", "ForRewardModel": "internlm/internlm2-1_8b-reward"},
    ),
    "Olmo": SupportedFamily(
        (*LANGUAGE_MODEL_SUFFIXES, "ForSequenceClassification"), VS_TRANSFORMERS, {"ForCausalLM": "allenai/OLMo-7B-hf"}
    ),
    "Olmo2": SupportedFamily(
        (*LANGUAGE_MODEL_SUFFIXES, "ForSequenceClassification"),
        VS_TRANSFORMERS,
        {"ForCausalLM": "allenai/OLMo-2-1124-7B"},
    ),
    "Olmo3": SupportedFamily(
        (*LANGUAGE_MODEL_SUFFIXES, "ForSequenceClassification"),
        VS_TRANSFORMERS,
        {"ForCausalLM": "allenai/Olmo-3-7B-Instruct"},
    ),
    "Glm": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS, {"ForCausalLM": "THUDM/glm-4-9b-chat-hf"}),
    "Lfm2": SupportedFamily(
        LANGUAGE_MODEL_SUFFIXES,
        VS_TRANSFORMERS,
        {"Model": "LiquidAI/LFM2-ColBERT-350M (ColBERT, by its files)", "ForCausalLM": "LiquidAI/LFM2-1.2B"},
    ),
    "Lfm2Bidirectional": SupportedFamily(
        ("Model",),
        "Transformers' LFM2 without its masks",
        {"Model": "LiquidAI/LFM2.5-Embedding-350M, LiquidAI/LFM2.5-ColBERT-350M (ColBERT, by its files)"},
    ),
    "Jamba": SupportedFamily(
        (*LANGUAGE_MODEL_SUFFIXES, "ForSequenceClassification"),
        VS_TRANSFORMERS,
        {"ForSequenceClassification": "ai21labs/Jamba-tiny-reward-dev"},
    ),
    "DeepseekV3": SupportedFamily(DECODER_SUFFIXES, VS_TRANSFORMERS),
    "DeepseekV3Bidirectional": SupportedFamily(
        ("Model",),
        "Transformers' DeepSeek without its mask",
        {"Model": "ai-sage/Giga-Embeddings-instruct-10B-A1.8B-0826"},
    ),
}
