"""Options of the reference that steer machinery Cenote does not have: its programs pass them all the same."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

from cenote.errors import LoadError

logger = logging.getLogger("cenote")


@dataclass(frozen=True, slots=True)
class Unused:
    takes: Literal["switch", "value", "values"] = "value"  # what its flag is followed by
    harmless: tuple[object, ...] = ()  # the values that change no answer; all of them if empty


ANYTHING, SWITCH = Unused(), Unused("switch")
ONE, UNSET = Unused(harmless=(1,)), Unused(harmless=(None,))

WITHOUT_EFFECT: dict[str, Unused] = {
    # many devices
    "tensor_parallel_size": ONE,
    "pipeline_parallel_size": ONE,
    "data_parallel_size": ONE,
    "distributed_executor_backend": ANYTHING,
    "disable_custom_all_reduce": SWITCH,
    # memory and compilation
    "gpu_memory_utilization": ANYTHING,
    "swap_space": ANYTHING,
    "cpu_offload_gb": Unused(harmless=(0,)),
    "kv_cache_dtype": Unused(harmless=("auto",)),
    "block_size": ANYTHING,
    "enforce_eager": SWITCH,
    "compilation_config": ANYTHING,
    "max_seq_len_to_capture": ANYTHING,
    "enable_prefix_caching": SWITCH,
    "enable_chunked_prefill": SWITCH,
    "enable_flash_late_interaction": SWITCH,
    # checkpoints
    "load_format": Unused(harmless=("auto", "safetensors")),
    "config_format": Unused(harmless=("auto", "hf")),
    "download_dir": UNSET,
    "code_revision": ANYTHING,
    "use_tqdm_on_load": SWITCH,
    "tokenizer_mode": Unused(harmless=("auto", "slow")),
    "skip_tokenizer_init": SWITCH,
    "max_loras": ANYTHING,
    "max_lora_rank": ANYTHING,
    # images, audio, video
    "media_io_kwargs": ANYTHING,
    "mm_processor_cache_gb": ANYTHING,
    "enable_mm_embeds": SWITCH,
    # text generation
    "seed": ANYTHING,
    "max_logprobs": ANYTHING,
    # the server; request ids and load are always told, prompts never
    "renderer_num_workers": ANYTHING,
    "middleware": Unused("values", (None,)),
    "enable_request_id_headers": SWITCH,
    "enable_server_load_tracking": SWITCH,
    "enable_log_requests": SWITCH,
    "disable_log_requests": SWITCH,
    "disable_log_stats": SWITCH,
    "log_error_stack": SWITCH,
    "max_log_len": ANYTHING,
}


def has_no_effect(name: str, value: object) -> bool:
    """Whether an option can be dropped; one that would change the answer is refused instead."""
    if name not in WITHOUT_EFFECT:
        return False
    harmless = WITHOUT_EFFECT[name].harmless
    if harmless and value is not None and value not in harmless:
        instead = "leave it out" if harmless[0] in (None, "") else f"leave it out or give {harmless[0]!r}"
        raise LoadError(f"{name}={value!r} is not available; {instead}")
    logger.debug("%s=%r has no effect here", name, value)
    return True
