"""Keyword arguments of `LLM` as types, so that editors complete them and type checkers know them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from cenote.config.engine import Convert, DType, Quantization, Runner, RuntimeChoice
from cenote.config.pooler import PoolerConfig
from cenote.config.vllm_options import VLLMOptions


class EngineOptions(TypedDict, total=False):
    """The options of `EngineConfig`, which has their help, with the forms that `EngineConfig.from_kwargs` converts."""

    runner: Runner
    convert: Convert
    tokenizer: str | None
    tokenizer_revision: str | None
    revision: str | None
    hf_token: bool | str | None
    download_dir: str | None
    dtype: DType | Any  # a torch.dtype as well
    quantization: Quantization | None
    runtime: RuntimeChoice
    device: str | None
    tensor_parallel_size: int
    data_parallel_size: int
    devices: str | Sequence[str]
    max_model_len: int | str | None
    hf_overrides: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None
    pooler_config: PoolerConfig | Mapping[str, Any] | None
    served_model_name: str | Sequence[str] | None
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    scheduling_policy: Literal["fcfs", "priority"]
    deterministic: bool
    bulk_max_wait_s: float
    enable_prompt_embeds: bool
    plain_late_interaction: bool | None
    model_impl: Literal["auto", "cenote", "vllm", "transformers"]
    enable_lora: bool
    lora_modules: Sequence[str]
    default_adapter: str | None
    default_prompt_name: str | None
    default_prompt: str | None
    chat_template: str | os.PathLike[str] | None
    score_template: str
    chat_template_content_format: Literal["auto", "string", "openai"]
    default_chat_template_kwargs: Mapping[str, Any] | None
    io_processor_plugin: str | None
    limit_mm_per_prompt: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    allowed_local_media_path: str | None
    allowed_media_domains: Sequence[str]
    allow_any_media_domain: bool
    result_cache_bytes: int | str
    result_cache_dir: str | None
    result_cache_disk_bytes: int | str
    result_cache_shared: bool
    step_timeout_s: float
    expect_fingerprint: str | None
    self_check: bool
    trust_remote_code: bool
    task: str | None  # deprecated name of vLLM
    override_pooler_config: PoolerConfig | Mapping[str, Any] | None  # deprecated name of vLLM
    device_ids: str | Sequence[int | str] | None  # vLLM's form of devices


class LLMOptions(EngineOptions, VLLMOptions, total=False):
    """The options of the engine, and those of vLLM that have no effect or only one accepted value."""
