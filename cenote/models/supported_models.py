"""Catalog of supported models: example checkpoints per architecture and how its outputs were verified."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cenote.models.registry import EXACT_NAMES, CheckpointKind, kind_from_name
from cenote.models.supported_families import (
    SUPPORTED_FAMILIES,
    VS_CROSS_ENCODER,
    VS_INDEPENDENT,
    VS_MERGED_ADAPTER,
    VS_PYLATE,
    VS_SENTENCE_TRANSFORMERS,
    VS_TRANSFORMERS,
)

VLLM_VERSION = "0.32.0"


@dataclass(frozen=True, slots=True)
class SupportedModel:
    name: str  # of the architecture
    kind: CheckpointKind
    models: str
    verified_with: str


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
    "ColQwen2_5": (
        "vidore/colqwen2.5-v0.2, nomic-ai/colnomic-embed-multimodal-3b (adapters)",
        VS_MERGED_ADAPTER,
    ),
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
    "LlamaForRewardModelWithGating31": (
        "nicolinho/QRM-Llama3.1-8B, QRM-Llama3.1-8B-v2 (the expected value of the quantiles)",
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
    "T5Gemma2ForConditionalGeneration": (
        "KaLM-Embedding/KaLM-Reranker-V1-Nano (reranker), google/t5gemma-2-270m-270m (its encoder)",
        VS_TRANSFORMERS,
    ),
    "StaticEmbedding": (
        "sentence-transformers/static-retrieval-mrl-en-v1, static-similarity-mrl-multilingual-v1",
        VS_SENTENCE_TRANSFORMERS,
    ),
    "StaticModel": ("minishlab/potion-base-8M, potion-retrieval-32M, M2V_base_output", VS_SENTENCE_TRANSFORMERS),
    "SparseStaticEmbedding": (
        "queries of opensearch-project/opensearch-neural-sparse-encoding-doc-v3-distill (by its Router)",
        VS_SENTENCE_TRANSFORMERS,
    ),
    "VSplade": (
        "naver/v-splade-quality, naver/v-splade-efficient (pages, also texts)",
        "Transformers' ModernVBERT below an independent head",
    ),
    "VSpladeQuery": ("queries of naver/v-splade-quality, naver/v-splade-efficient", "a plain implementation"),
    "GLiNER2": (
        "fastino/gliner2-base-v1, gliner2-multi-v1, gliner2-large-v1 (entities, labels in each request)",
        "an independent implementation on Transformers' DeBERTa; gliner2 2.1.0",
    ),
    "GLiNER2.5": (
        "fastino/gliner2.5-small-v1, gliner2.5-base-v1, gliner2.5-multi-v1 (entities, labels in each request)",
        "an independent implementation on Transformers' DeBERTa; gliner2 2.1.0",
    ),
    "GLiNER": (
        "urchade/gliner_small-v2.1, gliner_medium-v2.1, gliner_large-v2.1, gliner_multi-v2.1, "
        "knowledgator/gliner-multitask-large-v0.5 (labels in each request)",
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
    "MLQwen3Model": ("Querit/Querit-4B", "Transformers' Qwen3 below the published head"),
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
    "BertModel": "Sentence Transformers on the weights of all-MiniLM-L6-v2: vectors, text pairs, SciFact",
    "BertForSequenceClassification": f"{VS_CROSS_ENCODER} on the weights of ms-marco-MiniLM-L12-v2: scores, SciFact",
    "BertForTokenClassification": "entities: the pipeline of Transformers",
    "BertForMaskedLM": "Sentence Transformers' SparseEncoder on the weights of splade-tiny",
    "DistilBertForMaskedLM": "Sentence Transformers' SparseEncoder",
    "RobertaModel": "Sentence Transformers on the weights of granite-embedding-30m-english: vectors, text pairs",
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
