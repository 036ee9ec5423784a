"""Every option, declared once: the flag, its help and the keyword of `LLM` follow from here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from cenote.config.ignored_options import is_ignored
from cenote.config.options import check_known_names, option, option_fields, parse_bytes, parse_token_count
from cenote.config.pooler import PoolerConfig
from cenote.errors import BadRequest

logger = logging.getLogger("cenote")


Runner = Literal["auto", "pooling", "generate"]
Convert = Literal["auto", "none", "embed", "classify", "reward"]
DType = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]
Quantization = Literal["int8", "fp8"]

# variables that are no option of the server: each with what it does; any other CENOTE_* is refused at the start
EXTRA_VARIABLES = {
    "CENOTE_ALLOW_LONG_MAX_MODEL_LEN": "accept a max_model_len above what the model's files say",
    "CENOTE_MAX_CPU_ISA": "use no CPU instructions above this level",
}
DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
# a smaller file would hold little but itself
MIN_CACHE_DISK_BYTES = 1024**2
# in one input, where nobody says: the reference's number
DEFAULT_MAX_IMAGES = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What to load and how to run it."""

    model: str | None = option("a hub name or a folder; the embedded default model when unset", default=None)
    runner: Runner = option("pooling in all cases; auto finds out", default="auto", choices=("auto", "pooling"))
    convert: Convert = option(
        "turn any model into an embedder or a classifier",
        default="auto",
        choices=("auto", "none", "embed", "classify", "reward"),
    )
    tokenizer: str | None = option("a hub name or folder of another tokenizer", default=None)
    tokenizer_revision: str | None = option("branch, tag or commit of the other tokenizer", default=None)
    revision: str | None = option("branch, tag or commit on the hub", default=None)
    hf_token: str | None = option("access token for the hub; HF_TOKEN when unset", default=None)
    dtype: DType = option(
        "auto: as the checkpoint on a GPU; on a CPU bfloat16 where it has units for it, else float32. "
        "A 16-bit type that the CPU has no units for is computed in float32",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16", "float", "half"),
    )
    quantization: Quantization | None = option(
        "compute linear layers in smaller numbers: int8 on a CPU with AMX or AVX512-VNNI (without effect on others), "
        "fp8 on a GPU",
        default=None,
        choices=("int8", "fp8"),
    )
    device: str | None = option("cpu, cuda, cuda:1; a GPU if there is one", default=None)
    max_model_len: int | None = option("read at most this many tokens (8k, 8K)", default=None, parse=parse_token_count)
    hf_overrides: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None = option(
        "JSON merged into config.json", default=None
    )
    pooler_config: PoolerConfig = option("JSON: pooling_type, use_activation, ...", default=PoolerConfig())
    served_model_name: str | None = option("the name used in messages and replies", default=None)
    max_num_batched_tokens: int | None = option("tokens per batch; chosen for the device when unset", default=None)
    max_num_seqs: int | None = option("sequences per batch; as many as its tokens allow when unset", default=None)
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs: first come, first served; priority: lower numbers first", default="fcfs", choices=("fcfs", "priority")
    )
    enable_prompt_embeds: bool = option("accept prompts given as token embeddings", default=False)
    plain_late_interaction: bool = option(
        "read texts for a ColBERT model as any others: no markers, no expanded queries, no tokens left out",
        default=False,
    )
    model_impl: Literal["auto", "cenote", "vllm", "transformers"] = option(
        "who runs the model: cenote, the slower Transformers library, or auto: the library where cenote cannot",
        default="auto",
        choices=("auto", "cenote", "vllm", "transformers"),  # vllm is the reference's word for what is its own
    )
    enable_lora: bool = option("let requests bring LoRA adapters", default=False)
    lora_modules: tuple[str, ...] = option("LoRA adapters as name=folder, or JSON with name and path", default=())
    default_adapter: str | None = option(
        "the adapter for requests that name none: a task of the model, or one of lora_modules", default=None
    )
    default_prompt_name: str | None = option(
        "the prompt for requests that name none; the one of Sentence Transformers' files when unset", default=None
    )
    default_prompt: str | None = option("the same as text; empty: none", default=None)
    chat_template: str | None = option(
        "Jinja text, or a file of it, for conversations and for joining query and document", default=None
    )
    score_template: str = option(
        "what joins query and document for a reranker: auto, none, a name like qwen3_reranker, Jinja text or a file",
        default="auto",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "how a template wants the content of messages: as texts, or as OpenAI's lists of parts",
        default="auto",
        choices=("auto", "string", "openai"),
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = option("JSON: variables for chat templates", default=None)
    io_processor_plugin: str | None = option(
        "an installed plugin that gives the model an input and an output of its own; config.json may name one as well",
        default=None,
    )
    limit_mm_per_prompt: Mapping[str, Any] | None = option(
        'JSON: images that one input may have, {"image": 4}', default=None
    )
    mm_processor_kwargs: Mapping[str, Any] | None = option(
        "JSON: how images are read where not as the model's files say, such as max_pixels", default=None
    )
    allowed_local_media_path: str | None = option(
        "a folder; requests may name images in it as file:///...", default=None
    )
    allowed_media_domains: tuple[str, ...] = option("hosts that images may be fetched from; none if unset", default=())
    allow_any_media_domain: bool = option("fetch images from every public host", default=False)
    max_waiting_chars: int = option(
        "characters and token ids of requests in flight; a server answers 429 above it", default=256 * 1024**2
    )
    result_cache_bytes: int = option(
        "memory for answers to inputs that come again (512M); 0: none are kept", default=0, parse=parse_bytes
    )
    result_cache_dir: str | None = option(
        "a folder that keeps them over restarts, for several processes if need be", default=None
    )
    result_cache_disk_bytes: int = option("the most that this folder holds", default=2 * 1024**3, parse=parse_bytes)
    result_cache_shared: bool = option("one answer for all API keys; each has its own when unset", default=False)
    step_timeout_s: float = option("a batch that runs longer is given up, and the engine with it", default=600.0)
    trust_remote_code: bool = option("accepted and without effect: checkpoint code is never run", default=False)

    def __post_init__(self) -> None:
        for item in option_fields(type(self)):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value is not None and value not in (*choices, "generate"):
                raise BadRequest(f"{item.name}={value!r} is unknown; there are: {', '.join(choices)}", param=item.name)
        if not isinstance(self.result_cache_bytes, int) or self.result_cache_bytes < 0:
            raise BadRequest(f"result_cache_bytes={self.result_cache_bytes!r} is no number of bytes")
        if not isinstance(self.result_cache_disk_bytes, int) or self.result_cache_disk_bytes < MIN_CACHE_DISK_BYTES:
            raise BadRequest(f"result_cache_disk_bytes={self.result_cache_disk_bytes!r} is too little; give 1M or more")
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_waiting_chars", "step_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise BadRequest(f"{name}={value!r} leaves no room for anything; give a number above 0", param=name)

    @property
    def max_images_per_prompt(self) -> int:
        """That one input may have."""
        limit = (self.limit_mm_per_prompt or {}).get("image", DEFAULT_MAX_IMAGES)
        limit = limit.get("count", DEFAULT_MAX_IMAGES) if isinstance(limit, Mapping) else limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(f'limit_mm_per_prompt={self.limit_mm_per_prompt!r} is no limit; write {{"image": 4}}')
        return limit

    @classmethod
    def from_kwargs(cls, model: str | None = None, **kwargs: Any) -> EngineConfig:
        """From the keywords of `LLM`, older spellings and options of the reference included."""
        # None is how programs say that they leave an option alone
        kwargs = {name: value for name, value in kwargs.items() if value is not None and not is_ignored(name, value)}
        if type(kwargs.get("dtype")).__module__ == "torch":
            kwargs["dtype"] = str(kwargs["dtype"]).removeprefix("torch.")
        kwargs["pooler_config"] = _resolve_pooler_config(kwargs)
        task = kwargs.pop("task", None)
        if isinstance(kwargs.get("max_model_len"), str | int):
            kwargs["max_model_len"] = parse_token_count(kwargs["max_model_len"])
        for name in ("result_cache_bytes", "result_cache_disk_bytes"):
            if isinstance(kwargs.get(name), str):
                kwargs[name] = parse_bytes(kwargs[name])
        if isinstance(names := kwargs.get("served_model_name"), list | tuple):
            kwargs["served_model_name"] = names[0] if names else None
        check_known_names(kwargs, {item.name for item in fields(cls)}, "engine option")
        return _apply_deprecated_task(cls(model=model, **kwargs), task)


def _resolve_pooler_config(kwargs: dict[str, Any]) -> PoolerConfig:
    old, new = kwargs.pop("override_pooler_config", None), kwargs.pop("pooler_config", None)
    if old is not None and new is not None and old != new:
        raise BadRequest("`override_pooler_config` is the older name of `pooler_config`; give one of them")
    return PoolerConfig.from_value(new if new is not None else old)


def _apply_deprecated_task(config: EngineConfig, task: str | None) -> EngineConfig:
    """`task=` of the oldest guide, in today's words."""
    if task is None or task == "auto":
        return config
    meanings: dict[str, dict[str, Any]] = {
        "embed": {"convert": "embed"},
        "embedding": {"convert": "embed"},
        "classify": {"convert": "classify"},
        "score": {},
        "reward": {},
        "token_embed": {},
        "token_classify": {},
    }
    if task not in meanings:
        raise BadRequest(f"task={task!r} is unknown; there are: {', '.join(meanings)}", param="task", value=task)
    today = meanings[task] if config.convert == "auto" else {}
    words = " ".join(f"--{name} {value}" for name, value in {"runner": "pooling", **today}.items())
    logger.info("task=%s is the older spelling of: %s", task, words)
    return replace(config, runner="pooling", **today)
