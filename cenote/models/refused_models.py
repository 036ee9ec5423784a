"""Published architectures that are refused by name, with what to use instead: a guess would give wrong embeddings."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.errors import LoadError
from cenote.models.architecture import HFConfig

# models of texts, images, audio and video have prompts of their own for each of these, also for texts alone
OMNI = (
    "it embeds texts, images, audio and video with prompts of its own, and audio is not supported; use "
    "Qwen/Qwen3-VL-Embedding-2B for texts and images"
)
JINA_OMNI = f"{OMNI}, or jinaai/jina-embeddings-v5-text-small or -nano, which give the same vectors of texts"
OMNI_TYPES = ("qwen2_5_omni", "qwen2_5_omni_thinker", "qwen3_omni_moe", "qwen3_omni_moe_thinker")
# architecture name -> the reason and the alternative
REFUSED_ARCHITECTURES = {
    "Qwen2_5OmniThinkerForConditionalGeneration": OMNI,  # LCO-Embedding-Omni, e5-omni
    "Qwen2_5OmniForConditionalGeneration": OMNI,
    "NVOmniEmbedModel": f"{OMNI}, or nvidia/llama-nemotron-embed-vl-1b-v2",  # omni-embed-nemotron
    "BidirLMOmniModel": f"{OMNI}, or BidirLM/BidirLM-0.6B-Embedding for texts",
    "JinaEmbeddingsV5OmniModel": JINA_OMNI,
    "Qwen3VLAudioModel": JINA_OMNI,  # of jina-embeddings-v5-omni-small-retrieval and its siblings
    "LlavaEuroBertAudioForEmbedding": JINA_OMNI,  # of -nano-retrieval
    "FunnelBaseModel": "it returns fewer hidden states than tokens; use the model without -base (FunnelModel)",
    "DPRReader": "it marks the span of an answer; use the context and question encoders",
    "ContextualDocumentEmbeddingTransformer": "its second stage reads embeddings of a corpus, which requests do not "
    "have; use an embedder with one stage",
    "Splade": "splade-code without Sentence Transformers files, whose config.json does not describe the model; use its "
    "revision with modules.json",
    "BiModernVBert": "bimodernvbert is known to its authors' code only; use ModernVBERT/colmodernvbert-merged or "
    "naver/v-splade-quality for page images",
}
TEXTS_INSTEAD = "transcribe the speech with other software, and use an embedding model for the texts"
IMAGES_INSTEAD = "for embeddings or classes of images use a model like google/siglip2-base-patch16-224"
# kind of model -> model types, suffixes of architectures, and what to use instead
REFUSED_KINDS = {
    "a speech model": (
        (
            *("whisper", "wav2vec2", "wav2vec2-bert", "wav2vec2-conformer", "hubert", "wavlm", "speecht5", "clap"),
            *("data2vec-audio", "audio-spectrogram-transformer", "moonshine", "seamless_m4t", "seamless_m4t_v2"),
            *("musicgen", "bark", "vits", "encodec", "parakeet_ctc", "voxtral"),
        ),
        ("ForSpeechSeq2Seq", "ForCTC", "ForAudioClassification", "ForTextToSpeech"),
        TEXTS_INSTEAD,
    ),
    "a model that finds objects, areas or depths in images": (
        ("detr", "yolos", "sam", "sam2", "depth_anything", "mask2former", "segformer"),
        ("ForObjectDetection", "ForImageSegmentation", "ForSemanticSegmentation", "ForDepthEstimation"),
        IMAGES_INSTEAD,
    ),
    "a model of images or videos alone": (
        ("vit", "deit", "beit", "swin", "resnet", "convnext", "dinov2", "dinov3_vit", "videomae", "timesformer"),
        ("ForVideoClassification", "ForMaskedImageModeling"),
        IMAGES_INSTEAD,
    ),
}
# name of the model -> likewise; files of Sentence Transformers that describe a reranker take precedence
REFUSED_NAMES = {
    "LightOn-rerank-LW": "it writes the order of documents as text; use lightonai/LightOn-rerank-PW-0.8B",
    "LightOn-rerank-PW": "without 1_LogitScore its prompt is unknown; use a revision that has it",
}


def check_name_not_refused(names: Sequence[str], config: HFConfig) -> None:
    """Raise LoadError for a language model that is known to be used in a way that is not supported."""
    for part, reason in REFUSED_NAMES.items():
        if any(part.lower() in name.lower() for name in (*names, str(config.get("_name_or_path", "")))):
            raise LoadError(f"{config.source}: {part} is not supported: {reason}")


def check_not_refused(names: Sequence[str], config: HFConfig) -> None:
    """Raise LoadError for an architecture that is known and not supported."""
    for name in names:
        if (reason := REFUSED_ARCHITECTURES.get(name)) is not None:
            raise LoadError(f"{config.source}: {name} is not supported: {reason}")
    kind = config.get("model_type")
    if kind in OMNI_TYPES:
        raise LoadError(f"{config.source}: model_type {kind} is not supported: {OMNI}")
    for description, (model_types, suffixes, way_out) in REFUSED_KINDS.items():
        if kind in model_types or any(name.endswith(suffixes) for name in names):
            raise LoadError(
                f"{config.source}: {', '.join(names) or 'this'} is {description}, which is not supported; {way_out}"
            )
    if config.get("_class_name") is not None:
        raise LoadError(
            f"{config.source}: {config.get('_class_name')} is a part of a Diffusers pipeline, which generates images; "
            f"{IMAGES_INSTEAD}"
        )
    if not names and config.get("architecture") is not None:
        raise LoadError(f"{config.source}: {config.get('architecture')} is a timm model of images; {IMAGES_INSTEAD}")
    stored = config.get("quantization")
    if isinstance(stored, dict) and "group_size" in stored and "quant_method" not in stored:
        raise LoadError(
            f"{config.source}: the weights are quantized by MLX for Apple silicon, which is not supported; use the "
            "original model, which the page on the hub names as the base model"
        )
    # Nemotron-3.5-Embed and -Rerank; Transformers would run their text model with a causal mask
    if kind == "mistral3" and config.values.get("is_causal") is False:
        raise LoadError(
            f"{config.source}: Mistral3 with images and a bidirectional mask (Nemotron-3.5-Embed, Nemotron-3.5-Rerank) "
            "is not supported: its prompts, image sizes and score head are unknown; to embed use "
            "nvidia/Nemotron-3-Embed-1B for texts, or nvidia/llama-nemotron-embed-vl-1b-v2 for texts and images; to "
            "rerank, nvidia/llama-nemotron-rerank-1b-v2 or nvidia/llama-nemotron-rerank-vl-1b-v2"
        )
