"""Catalog of supported models: example checkpoints per architecture and how its outputs were verified."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cenote.models.registry import EXACT_NAMES, CheckpointKind, kind_from_name

VLLM_VERSION = "0.32.0"

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


@dataclass(frozen=True, slots=True)
class SupportedModel:
    name: str  # of the architecture
    kind: CheckpointKind
    models: str
    verified_with: str


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

# exact names -> example models, and what outputs were compared with
SUPPORTED_NAMES = {
    "HF_ColBERT": (
        "answerdotai/answerai-colbert-small-v1, colbert-ir/colbertv2.0",
        "an independent implementation of ColBERT",
    ),
    "ColBERTModel": (
        "colbert-ir/colbertv2.0 with hf_overrides of older vLLM",
        "an independent implementation of ColBERT",
    ),
    "ColBERTModernBertModel": ("lightonai/GTE-ModernColBERT-v1 with vLLM's hf_overrides", VS_PYLATE),
    "ColBERTJinaRobertaModel": (
        "jinaai/jina-colbert-v2 with vLLM's hf_overrides",
        "an independent implementation of ColBERT",
    ),
    "ColBERTLfm2Model": ("LiquidAI/LFM2-ColBERT-350M with vLLM's hf_overrides", VS_PYLATE),
    "ColQwen3": ("TomoroAI/tomoro-colqwen3-embed-4b", "Transformers' Qwen3-VL below the projection"),
    "ColQwen3_5": (
        "athrael-soju/colqwen3.5-4.5B-v3, vultr/VultronRetrieverPrime-Qwen3.5-8B",
        "Transformers' Qwen3.5 below the projection, with and without mask",
    ),
    "OpsColQwen3Model": ("OpenSearch-AI/Ops-Colqwen3-4B", "Transformers' Qwen3-VL below the projection"),
    "Qwen3VLNemotronEmbedModel": ("nvidia/nemotron-colembed-vl-4b-v2", "Transformers' Qwen3-VL, with and without mask"),
    "ColPali": ("vidore/colpali-v1.2, vidore/colpali-v1.3 (adapters), vidore/colpali-v1.3-merged", VS_MERGED_ADAPTER),
    "ColQwen2": ("vidore/colqwen2-v1.0 (adapter), vidore/colqwen2-v1.0-merged", VS_MERGED_ADAPTER),
    "ColQwen2_5": ("vidore/colqwen2.5-v0.2 (adapter)", VS_MERGED_ADAPTER),
    "ColIdefics3": ("vidore/colSmol-256M, vidore/colSmol-500M (adapters)", VS_MERGED_ADAPTER),
    "ColPaliForRetrieval": ("vidore/colpali-v1.3-hf", VS_TRANSFORMERS),
    "ColModernVBertForRetrieval": ("ModernVBERT/colmodernvbert-merged", VS_TRANSFORMERS),
    "Contriever": ("facebook/contriever, facebook/contriever-msmarco, facebook/mcontriever", VS_TRANSFORMERS),
    "DPRContextEncoder": ("facebook/dpr-ctx_encoder-single-nq-base", VS_TRANSFORMERS),
    "DPRQuestionEncoder": ("facebook/dpr-question_encoder-single-nq-base", VS_TRANSFORMERS),
    "BilingualModel": (
        "Lajavaness/bilingual-embedding-large, Lajavaness/bilingual-embedding-small",
        "Transformers' XLM-RoBERTa and BERT with the same weights",
    ),
    "BgeM3EmbeddingModel": ("BAAI/bge-m3 with vLLM's hf_overrides", "Transformers' XLM-RoBERTa below the two heads"),
    "LayerWiseMiniCPMForCausalLM": ("BAAI/bge-reranker-v2-minicpm-layerwise", VS_INDEPENDENT),
    "CostWiseGemmaForCausalLM": (
        "BAAI/bge-reranker-v2.5-gemma2-lightweight",
        "Transformers' Gemma 2 of as many layers, below the published head",
    ),
    "LlamaForRewardModelWithGating": (
        "RLHFlow/ArmoRM-Llama3-8B-v0.1",
        "Transformers' Llama below the published head",
    ),
    "HHEMv2ForSequenceClassification": (
        "vectara/hallucination_evaluation_model",
        "Transformers' T5 encoder below the published head",
    ),
    "BidirLMModel": (
        "BidirLM/BidirLM-0.6B-Embedding, BidirLM/BidirLM-1B-Embedding",
        "Transformers' Qwen3 and Gemma 3 without their masks",
    ),
    "CodeSage": ("codesage/codesage-small-v2, codesage/codesage-large-v2", "Transformers' GPT-2 without its mask"),
    "CodeXEmbedModel2B": ("Salesforce/SFR-Embedding-Code-2B_R", "Transformers' Gemma 2 with the same weights"),
    "NVEmbedModel": (
        "nvidia/NV-Embed-v1, nvidia/NV-Embed-v2",
        "Transformers' Mistral without its mask below an independent latent attention",
    ),
    "GmeQwen2VL": (
        "Alibaba-NLP/gme-Qwen2-VL-2B-Instruct, gme-Qwen2-VL-7B-Instruct",
        "Transformers' Qwen2-VL with consecutive positions",
    ),
    "LlamaNemotronVLModel": (
        "nvidia/llama-nemotron-embed-vl-1b-v2",
        "Transformers' SigLIP and Llama without its mask, combined",
    ),
    "LlamaNemotronVLForSequenceClassification": (
        "nvidia/llama-nemotron-rerank-vl-1b-v2",
        "Transformers' SigLIP and Llama without its mask, combined",
    ),
    "LlavaNextForConditionalGeneration": ("royokong/e5-v", VS_TRANSFORMERS),
    "Phi3VForCausalLM": ("TIGER-Lab/VLM2Vec-Full", "Transformers' CLIP and Phi-3, combined"),
    "StaticEmbedding": (
        "sentence-transformers/static-retrieval-mrl-en-v1, static-similarity-mrl-multilingual-v1",
        VS_SENTENCE_TRANSFORMERS,
    ),
    "StaticModel": ("minishlab/potion-base-8M, potion-retrieval-32M, M2V_base_output", VS_SENTENCE_TRANSFORMERS),
    "SparseStaticEmbedding": (
        "queries of opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill (by its Router)",
        VS_SENTENCE_TRANSFORMERS,
    ),
    "GLiNER": (
        "urchade/gliner_small-v2.1, gliner_medium-v2.1, gliner_large-v2.1, gliner_multi-v2.1 (labels in each request)",
        "Transformers' DeBERTa below an independent span head",
    ),
    "GritLM": ("parasail-ai/GritLM-7B-vllm", "Transformers' Mistral without its mask"),
    "VoyageQwen3BidirectionalEmbedModel": ("voyageai/voyage-4-nano", "Transformers' Qwen3 without its mask"),
    "PPLXQwen3Model": (
        "perplexity-ai/pplx-embed-v1-0.6b, perplexity-ai/pplx-embed-v1-4b",
        "Transformers' Qwen3 without its mask, then the published quantizer",
    ),
    "JinaEmbeddingsV4Model": ("jinaai/jina-embeddings-v4", "Transformers' Qwen2.5-VL with a task's adapter merged"),
    "JinaEmbeddingsV5Model": (
        "jinaai/jina-embeddings-v5-text-small, jinaai/jina-embeddings-v5-text-nano",
        "Transformers' Qwen3 with the adapters merged",
    ),
    "JinaForRanking": ("jinaai/jina-reranker-v3", "Transformers' Qwen3 below the projector"),
    "JinaVLForRanking": ("jinaai/jina-reranker-m0", "Transformers' Qwen2-VL below the head"),
    "ColQwen2ForRetrieval": ("vidore/colqwen2-v1.0-hf", VS_TRANSFORMERS),
    "GPT2LMHeadModel": ("openai-community/gpt2", VS_TRANSFORMERS),
    "Qwen2ForProcessRewardModel": ("Qwen/Qwen2.5-Math-PRM-7B", "Transformers' Qwen2 below the head"),
    "Qwen2ForRewardModel": ("Qwen/Qwen2.5-Math-RM-72B", "Transformers' Qwen2 below the head"),
}

# further comparisons of single architectures, mostly with real weights
ALSO_VERIFIED_WITH = {
    **dict.fromkeys(
        [
            f"{stem}ForSequenceClassification"
            for stem in ("Roberta", "ModernBert", "Camembert", "DistilBert", "MPNet", "Albert", "Electra")
        ],
        VS_CROSS_ENCODER,
    ),
    **dict.fromkeys(("DebertaForSequenceClassification", "DebertaV2ForSequenceClassification"), VS_CROSS_ENCODER),
    "BertModel": "Sentence Transformers on the weights of all-MiniLM-L6-v2: vectors, STS, SciFact",
    "BertForSequenceClassification": f"{VS_CROSS_ENCODER} on the weights of ms-marco-MiniLM-L12-v2: scores, SciFact",
    "BertForTokenClassification": "entities: the pipeline of Transformers",
    "BertForMaskedLM": "Sentence Transformers' SparseEncoder on the weights of splade-tiny",
    "DistilBertForMaskedLM": "Sentence Transformers' SparseEncoder",
    "RobertaModel": "Sentence Transformers on the weights of granite-embedding-30m-english: vectors, STS",
    "T5EncoderModel": "Sentence Transformers",
    "ColBERTModernBertModel": "Sentence Transformers' MultiVectorEncoder",
}

# largest difference from vLLM outputs: tiny random float32 checkpoints, CPU build of vLLM
VLLM_DIFFERENCES = {
    "BertModel": "2e-7",
    "BertForSequenceClassification": "1e-6",
    "BertForTokenClassification": "2e-6",
    "BertForMaskedLM": "5e-6",
    "BertSpladeSparseEmbeddingModel": "2e-6",
    "RobertaModel": "2e-7",
    "RobertaForSequenceClassification": "9e-7",
    "RobertaForTokenClassification": "2e-6",
    "XLMRobertaModel": "5e-7",  # rotary, with its adapters
    "XLMRobertaForSequenceClassification": "2e-6",
    "ModernBertModel": "7e-7",
    "ModernBertForSequenceClassification": "5e-6",
    "ModernBertForTokenClassification": "5e-6",
    "NomicBertModel": "3e-7",  # also with rope scaling for long inputs; without the experts of v2
    "GteNewModel": "3e-7",
    "GteNewForSequenceClassification": "2e-6",
    "GteModel": "2e-7",
    "OpenAIPrivacyFilterForTokenClassification": "5e-6",
    "LlamaForCausalLM": "3e-7",
    "LlamaForSequenceClassification": "3e-6",
    "LlamaBidirectionalModel": "6e-7",
    "LlamaBidirectionalForSequenceClassification": "6e-6",
    "MistralModel": "2e-7",
    "DeciLMForCausalLM": "4e-7",
    "TeleChat2ForCausalLM": "2e-7",
    "Qwen2ForCausalLM": "3e-6",  # causal, bidirectional, and as a reranker
    "Qwen3ForCausalLM": "2e-6",  # as an embedder and as a reranker
    "Qwen3ForSequenceClassification": "2e-6",
    "Qwen3ForTokenClassification": "4e-6",
    "Qwen2MoeForCausalLM": "3e-7",
    "Qwen3MoeForCausalLM": "2e-7",
    "GemmaForCausalLM": "6e-6",  # as a reranker
    "Gemma2Model": "6e-7",
    "Gemma3TextModel": "1e-7",
    "Phi3ForCausalLM": "3e-7",
    "GPT2ForSequenceClassification": "2e-7",
    "InternLM2ForCausalLM": "3e-7",
    "InternLM2ForRewardModel": "3e-6",
    "GlmForCausalLM": "3e-7",
    "DeepseekV3BidirectionalModel": "2e-7",
    "HF_ColBERT": "4e-7",
    "ColBERTModernBertModel": "2e-6",
    "ColBERTJinaRobertaModel": "5e-7",
    "ColBERTLfm2Model": "8e-7",
    "BgeM3EmbeddingModel": "2e-6",
    "VoyageQwen3BidirectionalEmbedModel": "5e-7",
    "JinaEmbeddingsV5Model": "1e-6",
    "JinaForRanking": "5e-7",
    "Qwen2ForProcessRewardModel": "2e-7",
    "Qwen2ForRewardModel": "5e-6",
}


def iter_supported_models() -> Iterator[SupportedModel]:
    """Yield every supported architecture, families first."""
    for stem, family in SUPPORTED_FAMILIES.items():
        for suffix in family.suffixes:
            name, kind = f"{stem}{suffix}", family.kinds.get(suffix) or kind_from_name(suffix)
            yield SupportedModel(name, kind, family.models.get(suffix, ""), _verified_with(name, family.verified_with))
    for name, (models, compared) in SUPPORTED_NAMES.items():
        yield SupportedModel(name, EXACT_NAMES[name][1], models, _verified_with(name, compared))


def _verified_with(name: str, in_tests: str) -> str:
    vllm = f"vLLM {VLLM_VERSION} (within {VLLM_DIFFERENCES[name]})" if name in VLLM_DIFFERENCES else None
    return "; ".join(filter(None, (in_tests, ALSO_VERIFIED_WITH.get(name), vllm)))
