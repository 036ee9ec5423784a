"""The typed keyword arguments of `LLM` are those that it accepts."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import get_type_hints

from cenote import LLM
from cenote.config.engine import TRANSLATED_OPTIONS, EngineConfig
from cenote.config.llm_options import EngineOptions, LLMOptions
from cenote.config.vllm_options import REFUSAL_REASONS, VLLM_OPTIONS


def test_every_option_of_the_engine_has_a_type() -> None:
    expected = {field.name for field in fields(EngineConfig)} - {"model"}

    assert set(get_type_hints(EngineOptions)) == expected | set(TRANSLATED_OPTIONS)


def test_the_types_are_those_of_the_engine_or_wider() -> None:
    engine, typed = get_type_hints(EngineConfig), get_type_hints(EngineOptions)
    converted = {"dtype", "devices", "chat_template", "max_model_len", "pooler_config", "served_model_name"}
    converted |= {"lora_modules", "allowed_media_domains", "result_cache_bytes", "result_cache_disk_bytes"}

    for name in set(engine) & set(typed) - converted:
        assert typed[name] == engine[name], name


def test_options_of_vllm_without_effect_have_types_as_well() -> None:
    assert set(get_type_hints(LLMOptions)) == set(get_type_hints(EngineOptions)) | VLLM_OPTIONS.keys()
    assert VLLM_OPTIONS.keys() > REFUSAL_REASONS.keys()


def test_the_signature_of_llm_names_them() -> None:
    assert "LLMOptions" in str(inspect.signature(LLM.__init__))
