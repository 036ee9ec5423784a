"""Options of vLLM 0.33 and of older versions that Cenote accepts without effect, or only with the value it works by."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict, get_type_hints

from cenote.errors import LoadError

logger = logging.getLogger("cenote")

# the number of arguments of the flag: none, one, several
Switch: TypeAlias = bool | None
Value: TypeAlias = Any
Values: TypeAlias = Collection[Any] | None

# the class syntax needs a line for each option
# fmt: off
VLLMOptions = TypedDict("VLLMOptions", {  # noqa: UP013
    # text generation, tools and reasoning
    "anthropic_disabled_thinking_effort": Value, "aux_output_config": Value, "cohere_format": Value,
    "cohere_is_reasoning_model": Switch, "enable_auto_tool_choice": Switch, "enable_force_include_usage": Switch,
    "enable_per_request_metrics": Switch, "enable_prompt_tokens_details": Switch,
    "enable_return_routed_experts": Switch, "enable_trace_replay": Switch,
    "exclude_tools_when_tool_choice_none": Switch, "generation_config": Value, "logprobs_mode": Value,
    "max_logprobs": Value, "override_generation_config": Value, "per_request_spec_decode_metrics": Value,
    "reasoning_config": Value, "reasoning_effort_map": Value, "reasoning_parser": Value, "response_role": Value,
    "return_sampling_mask": Switch, "return_tokens_as_token_ids": Switch, "seed": Value,
    "sse_keep_alive_interval": Value, "structured_outputs_config": Value, "tool_call_parser": Value,
    "tool_strict_level": Value, "use_fp64_gumbel": Switch, "watermark_config": Value,
    # kernels, graphs and compilation
    "attention_backend": Value, "attention_config": Value, "compilation_config": Value,
    "cudagraph_capture_sizes": Values, "disable_cascade_attn": Switch, "enable_flash_late_interaction": Switch,
    "enable_flashinfer_autotune": Switch, "enforce_eager": Switch, "gdn_prefill_backend": Value,
    "ir_op_priority": Value, "jit_monitor_mode": Value, "jit_monitor_verbose": Switch, "kda_decode_backend": Value,
    "kda_prefill_backend": Value, "kernel_config": Value, "linear_backend": Value, "mamba_backend": Value,
    "mamba_ssu_algorithm": Value, "max_cudagraph_capture_size": Value, "max_seq_len_to_capture": Value,
    "moe_backend": Value, "monokernel": Switch, "optimization_level": Value, "performance_mode": Value,
    "sparse_indexer_topk_backend": Value,
    # KV cache, state-space caches and memory
    "block_size": Value, "disable_hybrid_kv_cache_manager": Switch, "ec_manager_config": Value,
    "enable_cumem_allocator": Switch, "enable_mamba_cache_stochastic_rounding": Switch,
    "enable_mamba_shared_prefix_checkpoint": Switch, "enable_prefix_caching": Switch, "gpu_memory_utilization": Value,
    "kv_cache_dtype": Value, "kv_cache_dtype_skip_layers": Values, "kv_cache_memory_bytes": Value,
    "kv_offloading_backend": Value, "kv_offloading_size": Value, "kv_sharing_fast_prefill": Switch,
    "mamba_block_size": Value, "mamba_cache_dtype": Value, "mamba_cache_mode": Value,
    "mamba_cache_philox_rounds": Value, "mamba_config": Value, "mamba_ssm_cache_dtype": Value,
    "num_gpu_blocks_override": Value, "offload_backend": Value, "offload_group_size": Value,
    "offload_num_in_group": Value, "offload_params": Values, "offload_prefetch_step": Value,
    "prefix_cache_retention_interval": Value, "prefix_caching_hash_algo": Value, "prefix_match_unit": Value,
    "replayssm_buffer_len": Value, "sleep_mode_backend": Value, "sleep_mode_offload_cudagraph": Switch,
    "sleep_preserve_parameter_names": Values, "swa_bounded_replay": Switch, "swap_space": Value,
    "use_replayssm": Switch,
    # parallelism
    "all2all_backend": Value, "cp_kv_cache_interleave_size": Value, "cpu_distributed_timeout_seconds": Value,
    "dbo_decode_token_threshold": Value, "dbo_prefill_token_threshold": Value, "dcp_comm_backend": Value,
    "dcp_kv_cache_interleave_size": Value, "dcp_q_replicate": Switch, "disable_custom_all_reduce": Switch,
    "disable_nccl_for_dp_synchronization": Switch, "distributed_executor_backend": Value,
    "distributed_timeout_seconds": Value, "dp_supervisor_probe_failure_threshold": Value,
    "dp_supervisor_probe_interval_s": Value, "dp_supervisor_probe_timeout_s": Value, "dp_sync_interval": Value,
    "enable_batch_sharded_sampling": Switch, "enable_dbo": Switch, "enable_ep_weight_filter": Switch,
    "enable_eplb": Switch, "enable_expert_parallel": Switch, "enable_hc_sp": Switch, "enable_nccl_comm_suspend": Switch,
    "enable_shm_tensor_arena": Switch, "eplb_config": Value, "expert_placement_strategy": Value,
    "max_parallel_loading_workers": Value, "numa_bind": Switch, "numa_bind_cpus": Values, "numa_bind_nodes": Values,
    "ray_workers_use_nsight": Switch, "ubatch_size": Value,
    # scheduling
    "async_scheduling": Switch, "disable_chunked_mm_input": Switch, "enable_chunked_prefill": Switch,
    "long_prefill_token_threshold": Value, "long_prefill_token_threshold_adaptive": Switch,
    "max_num_scheduled_tokens": Value, "prefill_schedule_interval": Value, "scheduler_reserve_full_isl": Switch,
    "stream_interval": Value, "watermark": Value,
    # checkpoints and adapters
    "allow_deprecated_quantization": Switch, "code_revision": Value, "enable_mixed_moe_lora_format": Switch,
    "enable_moe_shared_loras": Switch, "fully_sharded_loras": Switch, "max_cpu_loras": Value, "max_lora_rank": Value,
    "max_loras": Value, "pt_load_map_location": Value, "safetensors_load_strategy": Value,
    "safetensors_prefetch_block_size": Value, "safetensors_prefetch_num_threads": Value, "skip_tokenizer_init": Switch,
    "specialize_active_lora": Switch, "use_tqdm_on_load": Switch,
    # images, audio and video
    "enable_mm_embeds": Switch, "enable_mm_processor_stats": Switch, "media_io_kwargs": Value,
    "mm_device_do_normalize": Switch,
    "mm_encoder_attn_backend": Value, "mm_encoder_tp_mode": Value, "mm_hasher_algorithm": Value,
    "mm_ipc_gpu_memory_gb": Value, "mm_processor_cache_gb": Value, "mm_processor_cache_type": Value,
    "mm_processor_device": Value, "mm_shm_cache_max_object_size_mb": Value, "mm_tensor_ipc": Value,
    "skip_mm_profiling": Switch, "trust_request_mm_kwargs": Switch,
    # the server: request ids, load and metrics are always reported, prompts are never logged
    "aggregate_engine_logging": Switch, "cudagraph_metrics": Switch, "custom_histogram_buckets": Value,
    "disable_log_stats": Switch, "enable_layerwise_nvtx_tracing": Switch,
    "enable_log_deltas": Switch, "enable_log_outputs": Switch, "enable_log_requests": Switch,
    "disable_log_requests": Switch,
    "enable_logging_iteration_details": Switch, "enable_mfu_metrics": Switch, "enable_offline_docs": Switch,
    "enable_request_id_headers": Switch, "enable_server_load_tracking": Switch, "fail_on_environ_validation": Switch,
    "fingerprint_mode": Value, "fingerprint_value": Value, "h11_max_header_count": Value,
    "h11_max_incomplete_event_size": Value, "kv_cache_metrics": Switch, "kv_cache_metrics_sample": Value,
    "log_error_stack": Switch, "log_level": Value, "max_log_len": Value, "max_num_queued_tokens": Value,
    "renderer_num_workers": Value,
    "show_hidden_metrics_for_version": Value, "shutdown_timeout": Value, "watchdog_config": Value,
    # refused unless they have a value of REFUSED_OPTIONS
    "pipeline_parallel_size": Value, "decode_context_parallel_size": Value, "prefill_context_parallel_size": Value,
    "nnodes": Value, "node_rank": Value, "master_addr": Value, "master_port": Value, "headless": Switch,
    "data_parallel_rank": Value, "data_parallel_start_rank": Value, "data_parallel_size_local": Value,
    "data_parallel_address": Value, "data_parallel_rpc_port": Value, "data_parallel_backend": Value,
    "data_parallel_supervisor_port": Value, "data_parallel_hybrid_lb": Switch, "data_parallel_external_lb": Switch,
    "data_parallel_multi_port_external_lb": Switch, "enable_elastic_ep": Switch, "elastic_ep_max_dp_size": Value,
    "enable_fault_tolerance": Switch, "fault_tolerance_config": Value, "max_num_queued_reqs": Value,
    "max_num_active_seqs": Value, "grpc": Switch, "tokens_only": Switch, "enable_scale_out": Switch,
    "enable_sleep_mode": Switch, "tool_server": Value, "profiler_config": Value, "otlp_traces_endpoint": Value,
    "collect_detailed_traces": Values, "log_config_file": Value, "logging_config": Value, "ssl_ciphers": Value,
    "kv_transfer_config": Value, "kv_events_config": Value, "ec_transfer_config": Value,
    "weight_transfer_config": Value, "engram_config": Value, "worker_cls": Value, "worker_extension_cls": Value,
    "scheduler_cls": Value, "logits_processors": Values, "tool_parser_plugin": Value, "reasoning_parser_plugin": Value,
    "model_class_overrides": Value, "middleware": Values, "speculative_config": Value, "spec_method": Value,
    "spec_model": Value, "spec_tokens": Value, "diffusion_config": Value, "model_weights": Value,
    "hf_config_path": Value, "ignore_patterns": Values, "load_format": Value, "config_format": Value,
    "tokenizer_mode": Value, "model_loader_extra_config": Value, "quantization_config": Value, "cpu_offload_gb": Value,
    "cpu_offload_params": Values, "disable_sliding_window": Switch, "language_model_only": Switch,
    "mm_encoder_only": Switch, "interleave_mm_strings": Switch,
    "mm_encoder_attn_dtype": Value, "mm_encoder_fp8_scale_path": Value, "mm_encoder_fp8_scale_save_path": Value,
    "mm_encoder_fp8_scale_save_margin": Value, "video_pruning_rate": Value, "video_pruning_method": Value,
    "lora_dtype": Value, "lora_target_modules": Values, "default_mm_loras": Value,
    "enable_tower_connector_lora": Switch, "max_lora_cls_labels": Value, "additional_config": Value,
}, total=False)
# fmt: on
VLLM_OPTIONS: dict[str, Any] = get_type_hints(VLLMOptions)

# by the reason: each option with the value that changes nothing, or a tuple of these. Empty values are accepted as well
REFUSED_OPTIONS: dict[str, dict[str, object]] = {
    "the processes of a model run on one machine and share its layers by tensor_parallel_size": {
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "master_addr": "127.0.0.1",
        "master_port": 29501,
    },
    "data_parallel_size starts replicas on one machine, and Ray on several": {
        "headless": False,
        "data_parallel_rank": None,
        "data_parallel_start_rank": None,
        "data_parallel_size_local": None,
        "data_parallel_address": None,
        "data_parallel_rpc_port": None,
        "data_parallel_backend": "mp",
        "data_parallel_supervisor_port": 9256,
        "data_parallel_hybrid_lb": False,
        "data_parallel_external_lb": False,
        "data_parallel_multi_port_external_lb": False,
        "enable_elastic_ep": False,
        "elastic_ep_max_dp_size": None,
    },
    "the supervisor always replaces an engine process that has exited": {
        "enable_fault_tolerance": False,
        "fault_tolerance_config": None,
    },
    "max_queue_tokens and max_queue_seconds limit what is in flight, and max_num_seqs a batch": {
        "max_num_queued_reqs": None,
        "max_num_active_seqs": None,
    },
    "grpc_port serves the gRPC API of Text Embeddings Inference, not that of vLLM": {"grpc": False},
    "its routes or services do not exist": {
        "tokens_only": False,
        "enable_scale_out": False,
        "enable_sleep_mode": False,
        "tool_server": None,
        "profiler_config": None,
        "otlp_traces_endpoint": None,
        "collect_detailed_traces": None,
    },
    "log_format and log_level configure the log": {"log_config_file": None, "logging_config": None},
    "TLS uses the ciphers that Python selects": {"ssl_ciphers": None},
    "engines do not exchange a KV cache, encoder outputs or weights": {
        "kv_transfer_config": None,
        "kv_events_config": None,
        "ec_transfer_config": None,
        "weight_transfer_config": None,
        "engram_config": None,
    },
    "classes and modules written for vLLM are not loaded; a plugin of Cenote may replace them": {
        "worker_cls": "auto",
        "worker_extension_cls": None,
        "scheduler_cls": None,
        "logits_processors": None,
        "tool_parser_plugin": None,
        "reasoning_parser_plugin": None,
        "model_class_overrides": None,
        "middleware": None,
    },
    "text is not generated": {
        "speculative_config": None,
        "spec_method": None,
        "spec_model": None,
        "spec_tokens": None,
        "diffusion_config": None,
    },
    "a model is read from the safetensors files and config.json of one folder; hf_overrides changes its config": {
        "model_weights": None,
        "hf_config_path": None,
        "ignore_patterns": ("original/**/*",),
        "load_format": ("auto", "safetensors"),
        "config_format": ("auto", "hf"),
        "tokenizer_mode": ("auto", "slow"),
        "model_loader_extra_config": None,
    },
    "quantization selects int8 or fp8": {"quantization_config": None},
    "weights are not moved to host memory": {"cpu_offload_gb": 0, "cpu_offload_params": None},
    "all parts of a model are computed as its files say": {
        "disable_sliding_window": False,
        "language_model_only": False,
        "mm_encoder_only": False,
        "interleave_mm_strings": False,
        "mm_encoder_attn_dtype": None,
        "mm_encoder_fp8_scale_path": None,
        "mm_encoder_fp8_scale_save_path": None,
        "mm_encoder_fp8_scale_save_margin": 1.5,
        "video_pruning_rate": None,
        "video_pruning_method": "evs",
    },
    "an adapter is loaded as its files say, in the dtype of the model": {
        "lora_dtype": "auto",
        "lora_target_modules": None,
        "default_mm_loras": None,
        "enable_tower_connector_lora": False,
        "max_lora_cls_labels": None,
    },
    "no platform needs settings of its own": {"additional_config": None},
}
REFUSAL_REASONS = {name: reason for reason, options in REFUSED_OPTIONS.items() for name in options}
# what holds instead of an option without effect
NOTES = dict.fromkeys(
    ("h11_max_header_count", "h11_max_incomplete_event_size"),
    "a request may have up to 100 headers of 32768 bytes in all",
)


def list_accepted_values(name: str) -> tuple[Any, ...]:
    """Return the values of an option that is refused with others, its default first."""
    value = REFUSED_OPTIONS[REFUSAL_REASONS[name]][name]
    return value if isinstance(value, tuple) and VLLM_OPTIONS[name] != Values else (value,)


def remove_vllm_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other options; log the names of those without effect, and raise LoadError for refused values."""
    for name in options.keys() & REFUSAL_REASONS.keys():
        _check_value(name, options[name])
    unused = VLLM_OPTIONS.keys() - REFUSAL_REASONS.keys()
    _log_unused(tuple(name for name, value in options.items() if name in unused and value is not None))
    return {name: value for name, value in options.items() if name not in VLLM_OPTIONS}


def _check_value(name: str, value: Any) -> None:
    accepted = list_accepted_values(name)
    is_empty = value is None or (isinstance(value, str | Collection) and not value)
    is_default_list = VLLM_OPTIONS[name] == Values and _is_list(value) and list(value) == list(accepted[0] or ())
    if is_empty or is_default_list or value in accepted:
        return
    hint = "remove it" if accepted[0] is None else f"remove it or use {accepted[0]!r}"
    raise LoadError(f"{name}={value!r} is not supported: {REFUSAL_REASONS[name]}; {hint}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | Mapping)


@lru_cache(256)  # once per set of options: several models of a server may share theirs
def _log_unused(names: tuple[str, ...]) -> None:
    if names:
        notes = dict.fromkeys(NOTES[name] for name in names if name in NOTES)
        logger.warning("options of vLLM without effect: %s", "; ".join([", ".join(names), *notes]))
