"""Published models that are not supported are refused with one line: the file, the name, and what to use instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.errors import LoadError
from cenote.models.refused_models import OMNI_TYPES, REFUSED_ARCHITECTURES


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        *(
            ("config.json", {"architectures": [name]}, f"config.json: {name} is not supported: .*use ")
            for name in REFUSED_ARCHITECTURES
        ),
        *(
            ("config.json", {"architectures": [name], "model_type": model_type}, f"config.json: {name} is {kind}.*use ")
            for name, model_type, kind in (
                ("WhisperForConditionalGeneration", "whisper", "a speech model"),
                ("Wav2Vec2ForCTC", "wav2vec2", "a speech model"),
                ("DetrForObjectDetection", "detr", "a model that finds objects"),
                ("ViTForImageClassification", "vit", "a model of images or videos alone"),
            )
        ),
        (
            "config.json",
            {"_class_name": "UNet2DConditionModel"},
            "UNet2DConditionModel is a part of a Diffusers .*use ",
        ),
        ("config.json", {"architecture": "vit_base"}, "vit_base is a timm model of images; .*use "),
        (
            "config.json",
            {"architectures": ["BertModel"], "quantization": {"group_size": 64, "bits": 4}},
            "quantized by MLX for Apple silicon, .*use the original",
        ),
        (
            "config.json",
            {"architectures": ["Mistral3Model"], "model_type": "mistral3", "is_causal": False},
            r"config.json: Mistral3 .*\(Nemotron-3.5-Embed, Nemotron-3.5-Rerank\) is not supported: its prompts, image "
            "sizes and score head are unknown; to embed use nvidia/Nemotron-3-Embed-1B .*; to rerank, nvidia/llama-nem",
        ),
        (  # the key counts in the text config too
            "config.json",
            {
                "architectures": ["Mistral3ForSequenceClassification"],
                "model_type": "mistral3",
                "text_config": {"model_type": "ministral3", "is_causal": False},
            },
            "config.json: Mistral3 .* to rerank, nvidia/llama-nemotron-rerank-1b-v2 or nvidia/llama-nemotron-rerank-vl",
        ),
        *(
            (
                "config.json",
                {"model_type": kind},
                f"config.json: model_type {kind} is not supported: .*audio is not .*use ",
            )
            for kind in OMNI_TYPES
        ),
        *(
            (
                "gliner_config.json",
                {key: value},
                f"gliner_config.json: {key} .* is not supported, only .*use a model such as ",
            )
            for key, value in (
                ("span_mode", "marker"),
                ("words_splitter_type", "spacy"),
                ("subtoken_pooling", "mean"),
                ("labels_encoder", "BAAI/bge-small-en-v1.5"),
                ("fuse_layers", True),
            )
        ),
        (
            "gliner_config.json",
            {"encoder_config": {"model_type": "modernbert"}},
            "gliner_config.json: the encoder modernbert is not supported, .*use ",
        ),
    ],
)
def test_a_known_model_that_is_not_supported_is_refused_with_an_alternative(
    file: str, content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(json.dumps(content))

    with pytest.raises(LoadError, match=message) as error:
        LLM(str(tmp_path), device="cpu")

    assert "\n" not in error.value.message and str(tmp_path / file) in error.value.message
