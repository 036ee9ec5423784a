"""Options of vLLM without an equivalent in Cenote: accepted for compatibility and ignored."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from cenote.errors import LoadError

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class IgnoredOption:
    arity: Literal["switch", "value", "values"] = "value"  # number of arguments of its flag
    accepted_values: tuple[object, ...] = ()  # values that would not change results; empty: all


ANY_VALUE, SWITCH = IgnoredOption(), IgnoredOption("switch")
ONLY_ONE, ONLY_UNSET = IgnoredOption(accepted_values=(1,)), IgnoredOption(accepted_values=(None,))

IGNORED_OPTIONS: dict[str, IgnoredOption] = {
    # parallelism
    "pipeline_parallel_size": ONLY_ONE,
    "distributed_executor_backend": ANY_VALUE,
    "disable_custom_all_reduce": SWITCH,
    # memory and compilation
    "gpu_memory_utilization": ANY_VALUE,
    "swap_space": ANY_VALUE,
    "cpu_offload_gb": IgnoredOption(accepted_values=(0,)),
    "kv_cache_dtype": IgnoredOption(accepted_values=("auto",)),
    "block_size": ANY_VALUE,
    "enforce_eager": SWITCH,
    "compilation_config": ANY_VALUE,
    "max_seq_len_to_capture": ANY_VALUE,
    "enable_prefix_caching": SWITCH,
    "enable_chunked_prefill": SWITCH,
    "enable_flash_late_interaction": SWITCH,
    # checkpoints
    "load_format": IgnoredOption(accepted_values=("auto", "safetensors")),
    "config_format": IgnoredOption(accepted_values=("auto", "hf")),
    "download_dir": ONLY_UNSET,
    "code_revision": ANY_VALUE,
    "use_tqdm_on_load": SWITCH,
    "tokenizer_mode": IgnoredOption(accepted_values=("auto", "slow")),
    "skip_tokenizer_init": SWITCH,
    "max_loras": ANY_VALUE,
    "max_lora_rank": ANY_VALUE,
    # images, audio, video
    "media_io_kwargs": ANY_VALUE,
    "mm_processor_cache_gb": ANY_VALUE,
    "enable_mm_embeds": SWITCH,
    # text generation
    "seed": ANY_VALUE,
    "max_logprobs": ANY_VALUE,
    # the server: request ids and load are always reported, prompts are never logged
    "renderer_num_workers": ANY_VALUE,
    "middleware": IgnoredOption("values", (None,)),
    "enable_request_id_headers": SWITCH,
    "enable_server_load_tracking": SWITCH,
    "enable_log_requests": SWITCH,
    "disable_log_requests": SWITCH,
    "disable_log_stats": SWITCH,
    "log_error_stack": SWITCH,
    "max_log_len": ANY_VALUE,
}


def is_ignored(name: str, value: object) -> bool:
    """Return whether an option is ignored; raise LoadError for a value that would change results."""
    if name not in IGNORED_OPTIONS:
        return False
    accepted = IGNORED_OPTIONS[name].accepted_values
    if accepted and value is not None and value not in accepted:
        hint = "remove it" if accepted[0] in (None, "") else f"remove it or use {accepted[0]!r}"
        raise LoadError(f"{name}={value!r} is not supported; {hint}")
    logger.debug("%s=%r is accepted for compatibility and ignored", name, value)
    return True
