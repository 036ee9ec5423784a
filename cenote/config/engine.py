"""EngineConfig: options of the engine, from which command-line flags, their help and `LLM` keywords are derived."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from cenote.config.options import DEFAULT_MODEL as DEFAULT_MODEL
from cenote.config.options import (
    MAX_PROCESSES,
    check_choices,
    check_known_names,
    check_positive,
    option,
    parse_bytes,
    parse_token_count,
)
from cenote.config.pooler import PoolerConfig
from cenote.config.vllm_options import remove_vllm_options
from cenote.errors import BadRequest

logger = logging.getLogger("cenote")

Runner = Literal["auto", "pooling", "generate"]
Convert = Literal["auto", "none", "embed", "classify", "reward"]
DType = Literal["auto", "float32", "float", "bfloat16", "float16", "half"]
Quantization = Literal["int8", "fp8"]
Runtime = Literal["native", "torch"]
RuntimeChoice = Literal["auto", "native", "torch"]

# environment variables that are not options of the server, with their effect; startup fails for any other CENOTE_*
EXTRA_VARIABLES = {
    "CENOTE_ALLOW_LONG_MAX_MODEL_LEN": "accept a max_model_len above the limit in the model's files",
    "CENOTE_CACHE_DIR": "folder for files that are kept between runs, instead of ~/.cache/cenote",
    "CENOTE_CPU_LEVEL": "use no CPU instructions above this level",
}
HUB_SCHEME = "hf://"  # optional before a hub name, as KServe writes it
# a smaller SQLite file would consist mostly of its own overhead
MIN_CACHE_DISK_BYTES = 1024**2
# options of vLLM that `from_kwargs` translates
TRANSLATED_OPTIONS = ("task", "override_pooler_config", "device_ids")
# of a model, or its first digits
FINGERPRINT = re.compile("[0-9a-fA-F]{12,40}")
# images per input; vLLM's default
DEFAULT_MAX_IMAGES = 999


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How files are downloaded from the hub."""

    token: bool | str | None = None  # None: HF_TOKEN; True: it, or that of `hf auth login`, must exist
    download_dir: str | None = None

    @property
    def cache_dir(self) -> str | None:
        """The folder for files of the hub; None if the hub library selects it."""
        return self.download_dir or os.environ.get("HF_HUB_CACHE")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The model to load and how to run it."""

    model: str | None = option(
        "folder, hub name (hf:// before it is optional) or s3://bucket/path; a bundled default model if unset",
        default=None,
    )
    runner: Runner = option(
        "accepted for compatibility with vLLM; always pooling", default="auto", choices=("auto", "pooling")
    )
    convert: Convert = option(
        "convert a model without a pooling head into an embedding, classification or reward model",
        default="auto",
        choices=("auto", "none", "embed", "classify", "reward"),
    )
    tokenizer: str | None = option("hub name or folder of the tokenizer; the model's if unset", default=None)
    tokenizer_revision: str | None = option("branch, tag or commit of the tokenizer on the hub", default=None)
    revision: str | None = option("branch, tag or commit of the model on the hub", default=None)
    hf_token: bool | str | None = option(
        "access token for the hub; HF_TOKEN or that of `hf auth login` if unset, and without a value required",
        default=None,
    )
    download_dir: str | None = option(
        "folder for files of the hub, in the layout of its cache; the variable HF_HUB_CACHE if unset", default=None
    )
    dtype: DType = option(
        "auto: the checkpoint's dtype on a GPU; on a CPU bfloat16 if it has bfloat16 instructions, else float32. "
        "A 16-bit dtype without native instructions on the CPU is computed in float32",
        default="auto",
        choices=("auto", "float32", "bfloat16", "float16", "float", "half"),
    )
    quantization: Quantization | None = option(
        "quantize linear layers while they are read: int8 on a CPU (only weights without int8 instructions), fp8 on a "
        "GPU",
        default=None,
        choices=("int8", "fp8"),
    )
    runtime: RuntimeChoice = option(
        "native: C on NumPy arrays, which starts without torch, for transformers on a CPU; torch: all models and "
        "devices; auto: native for the models that it runs as fast",
        default="auto",
        choices=("auto", "native", "torch"),
    )
    device: str | None = option("cpu, cuda or cuda:1; a GPU if one is available", default=None)
    tensor_parallel_size: int = option(
        "number of processes that the layers of the model are split over, each on a GPU of its own or with a share of "
        "the CPU cores",
        default=1,
    )
    data_parallel_size: int = option(
        "number of replicas of the model, each in a process of its own: on the first GPUs, or on a CPU with cores of "
        "its own; for cenote serve",
        default=1,
    )
    devices: tuple[str, ...] = option(
        "devices of all processes, such as cuda:0,cuda:2: tensor_parallel_size consecutive ones for each replica",
        default=(),
    )
    max_model_len: int | None = option(
        "maximum sequence length in tokens, such as 512, 8k (8000) or 8K (8192)", default=None, parse=parse_token_count
    )
    hf_overrides: Mapping[str, Any] | Callable[[dict[str, Any]], dict[str, Any]] | None = option(
        "JSON object merged into config.json", default=None
    )
    pooler_config: PoolerConfig = option(
        "JSON object with pooling_type, use_activation and other pooling options", default=PoolerConfig()
    )
    served_model_name: str | None = option("model name in messages and responses", default=None)
    max_num_batched_tokens: int | None = option(
        "maximum tokens per batch; chosen for the device if unset", default=None
    )
    max_num_seqs: int | None = option(
        "maximum sequences per batch; limited only by max_num_batched_tokens if unset", default=None
    )
    scheduling_policy: Literal["fcfs", "priority"] = option(
        "fcfs: first come, first served; priority: requests with lower priority values first",
        default="fcfs",
        choices=("fcfs", "priority"),
    )
    deterministic: bool = option(
        "return bit-equal results for equal inputs, whatever other inputs are in their batch; slower on a GPU and for "
        "some architectures",
        default=False,
    )
    bulk_max_wait_s: float = option(
        "seconds after which waiting inputs of bulk requests run also if interactive requests fill every batch",
        default=5.0,
    )
    enable_prompt_embeds: bool = option("accept prompts given as token embeddings", default=False)
    plain_late_interaction: bool | None = option(
        "disable the ColBERT text format: no markers, query expansion, skiplist and length limits; if unset, only for "
        "checkpoints without such settings; with the opposite flag those get the defaults of the ColBERT library",
        default=None,
    )
    model_impl: Literal["auto", "cenote", "vllm", "transformers"] = option(
        "model implementation: cenote or the (slower) Transformers backend; auto uses Transformers for architectures "
        "that cenote does not implement",
        default="auto",
        choices=("auto", "cenote", "vllm", "transformers"),  # vllm: accepted as an alias of cenote
    )
    enable_lora: bool = option("allow requests to load LoRA adapters", default=False)
    lora_modules: tuple[str, ...] = option(
        "LoRA adapters to load at startup, as name=folder or JSON with name and path", default=()
    )
    default_adapter: str | None = option(
        "adapter for requests without one: a task adapter of the model, or one of lora_modules", default=None
    )
    default_prompt_name: str | None = option(
        "name of the prompt for requests without one; that of the Sentence Transformers files if unset", default=None
    )
    default_prompt: str | None = option("text of the prompt for requests without one; empty: no prompt", default=None)
    chat_template: str | None = option(
        "Jinja template or its file, for conversations and for joining query and document", default=None
    )
    score_template: str = option(
        "template that joins query and document for a reranker: auto, none, the name of a built-in template such as "
        "qwen3_reranker, a Jinja template or its file",
        default="auto",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = option(
        "format of message contents in chat templates: string, or openai for lists of content parts",
        default="auto",
        choices=("auto", "string", "openai"),
    )
    default_chat_template_kwargs: Mapping[str, Any] | None = option(
        "JSON object with variables for chat templates", default=None
    )
    io_processor_plugin: str | None = option(
        "name of an installed IO processor plugin, which defines its own input and output format; overrides the one "
        "in config.json",
        default=None,
    )
    limit_mm_per_prompt: Mapping[str, Any] | None = option(
        'JSON object with the maximum number of images per input, such as {"image": 4}', default=None
    )
    mm_processor_kwargs: Mapping[str, Any] | None = option(
        "JSON object with image processor settings that override the model's files, such as max_pixels", default=None
    )
    allowed_local_media_path: str | None = option(
        "folder from which requests may load images with file:// URLs", default=None
    )
    allowed_media_domains: tuple[str, ...] = option(
        "hosts from which images may be fetched; none if unset (for LLM in Python: any)", default=()
    )
    allow_any_media_domain: bool = option("allow images to be fetched from any public host", default=False)
    result_cache_bytes: int = option(
        "memory for the result cache, such as 512M; 0 disables it", default=0, parse=parse_bytes
    )
    result_cache_dir: str | None = option(
        "folder for a result cache on disk, which survives restarts and may be shared by processes", default=None
    )
    result_cache_disk_bytes: int = option(
        "maximum size of the result cache on disk", default=2 * 1024**3, parse=parse_bytes
    )
    result_cache_shared: bool = option("share cached results between API keys", default=False)
    step_timeout_s: float = option("stop the engine if a batch takes longer than this many seconds", default=600.0)
    expect_fingerprint: str | None = option(
        "refuse to load a model with another fingerprint: its first 12 hex digits or more, from cenote inspect",
        default=None,
    )
    self_check: bool = option(
        "compare the results of a few texts with those of the first load, and warn if they have changed", default=True
    )
    trust_remote_code: bool = option(
        "accepted for compatibility and ignored: code in checkpoints is never run", default=False
    )
    task: str | None = None  # deprecated option of vLLM: the default task; `convert` is derived from it

    def __post_init__(self) -> None:
        self._strip_hub_scheme()
        check_choices(self, unlisted=("generate",))  # rejected later, with the reason
        if not isinstance(self.result_cache_bytes, int) or self.result_cache_bytes < 0:
            raise BadRequest(
                f"invalid result_cache_bytes={self.result_cache_bytes!r}; expected a number of bytes, 0 or more"
            )
        if not isinstance(self.result_cache_disk_bytes, int) or self.result_cache_disk_bytes < MIN_CACHE_DISK_BYTES:
            raise BadRequest(f"result_cache_disk_bytes must be at least 1M, got {self.result_cache_disk_bytes!r}")
        if self.expect_fingerprint is not None and not FINGERPRINT.fullmatch(self.expect_fingerprint):
            raise BadRequest(
                f"invalid expect_fingerprint={self.expect_fingerprint!r}; expected 12 to 40 hex digits, as cenote "
                "inspect shows them",
                param="expect_fingerprint",
            )
        check_positive(self, ("max_num_batched_tokens", "max_num_seqs", "step_timeout_s", "bulk_max_wait_s"))
        self._check_processes()

    def _strip_hub_scheme(self) -> None:
        """Read `hf://owner/name` as `owner/name`, and `hf://owner/name:main` with that revision."""
        for option_name, revision_name in (("model", "revision"), ("tokenizer", "tokenizer_revision")):
            source = getattr(self, option_name)
            if not isinstance(source, str) or not source.startswith(HUB_SCHEME):
                continue
            name, _, revision = source.removeprefix(HUB_SCHEME).partition(":")
            object.__setattr__(self, option_name, name)
            if revision and getattr(self, revision_name) is None:
                object.__setattr__(self, revision_name, revision)

    def _check_processes(self) -> None:
        """Check the numbers of replicas and of the processes of each, and that there is a device for every one."""
        for name in ("tensor_parallel_size", "data_parallel_size"):
            size = getattr(self, name)
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_PROCESSES:
                raise BadRequest(f"invalid {name}={size!r}; expected an integer from 1 to {MAX_PROCESSES}", param=name)
        if not self.devices:
            return
        for device in self.devices:
            if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
                raise BadRequest(f"invalid device {device!r} in devices; expected cpu or cuda:0", param="devices")
        count, ranks = len(self.devices), self.tensor_parallel_size
        if count % ranks or self.data_parallel_size not in (1, count // ranks):
            raise BadRequest(
                f"devices has {count} names for tensor_parallel_size={ranks} and data_parallel_size="
                f"{self.data_parallel_size}; use {ranks * self.data_parallel_size}, one for each process",
                param="devices",
            )
        if self.device not in (None, self.devices[0]):
            raise BadRequest(f"device={self.device!r} is not the first of devices={self.devices}; remove device")

    @property
    def hub(self) -> HubAccess:
        """How the files of the model, its tokenizer and adapters are downloaded."""
        return HubAccess(self.hf_token, self.download_dir)

    @property
    def num_replicas(self) -> int:
        """The number of engine processes that `cenote serve` starts for this model."""
        return len(self.devices) // self.tensor_parallel_size or self.data_parallel_size

    @property
    def max_images_per_prompt(self) -> int:
        """Maximum number of images per input."""
        limit = (self.limit_mm_per_prompt or {}).get("image", DEFAULT_MAX_IMAGES)
        limit = limit.get("count", DEFAULT_MAX_IMAGES) if isinstance(limit, Mapping) else limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(
                f"invalid limit_mm_per_prompt={self.limit_mm_per_prompt!r}; expected for example "
                '{"image": 4} with a number of 0 or more'
            )
        return limit

    def for_other_routes(self) -> EngineConfig:
        """Return the config of further routes of a model: without what applies to the default route's files only."""
        return replace(
            self,
            tokenizer=None,
            expect_fingerprint=None,
            max_model_len=None,
            hf_overrides=None,
            lora_modules=(),
            io_processor_plugin=None,
            result_cache_bytes=0,
            result_cache_dir=None,
        )

    @classmethod
    def from_kwargs(cls, model: str | None = None, **kwargs: Any) -> EngineConfig:
        """Return a config from the keywords of `LLM`, including those of vLLM that it translates or that do nothing."""
        # callers pass None for options that they leave at the default
        kwargs = {name: value for name, value in remove_vllm_options(kwargs).items() if value is not None}
        if type(kwargs.get("dtype")).__module__ == "torch":
            kwargs["dtype"] = str(kwargs["dtype"]).removeprefix("torch.")
        kwargs["pooler_config"] = _resolve_pooler_config(kwargs)
        task = kwargs.pop("task", None)
        if isinstance(kwargs.get("max_model_len"), str | int):
            kwargs["max_model_len"] = parse_token_count(kwargs["max_model_len"])
        if isinstance(kwargs.get("chat_template"), os.PathLike):
            kwargs["chat_template"] = os.fspath(kwargs["chat_template"])
        for name in ("result_cache_bytes", "result_cache_disk_bytes"):
            if isinstance(kwargs.get(name), str):
                kwargs[name] = parse_bytes(kwargs[name])
        if (device_ids := kwargs.pop("device_ids", None)) is not None:
            if "devices" in kwargs:
                raise BadRequest("`device_ids` is another form of `devices`; both were given", param="device_ids")
            kwargs["devices"] = [f"cuda:{item}" for item in _split_items(device_ids)]
        if "devices" in kwargs:
            kwargs["devices"] = tuple(_split_items(kwargs["devices"]))
        if isinstance(names := kwargs.get("served_model_name"), list | tuple):
            kwargs["served_model_name"] = names[0] if names else None
        check_known_names(kwargs, {item.name for item in fields(cls)}, "engine option")
        return _apply_deprecated_task(cls(model=model, **kwargs), task)


def _split_items(given: Any) -> list[str]:
    """Return the items of a list, or of a text in which commas separate them."""
    items = given if isinstance(given, list | tuple) else [given]
    return [part.strip() for item in items for part in str(item).split(",")]


def _resolve_pooler_config(kwargs: dict[str, Any]) -> PoolerConfig:
    old, new = kwargs.pop("override_pooler_config", None), kwargs.pop("pooler_config", None)
    if old is not None and new is not None and old != new:
        raise BadRequest(
            "`override_pooler_config` is a deprecated alias of `pooler_config`; both were given, with different values"
        )
    return PoolerConfig.from_value(new if new is not None else old)


def _apply_deprecated_task(config: EngineConfig, task: str | None) -> EngineConfig:
    """Translate the deprecated option `task` of vLLM into `runner` and `convert`; it stays the default task."""
    if task is None or task == "auto":
        return config
    replacements: dict[str, dict[str, Any]] = {
        "embed": {"convert": "embed"},
        "embedding": {"convert": "embed"},
        "classify": {"convert": "classify"},
        "score": {},
        "reward": {"convert": "reward"},
        "token_embed": {},
        "token_classify": {},
    }
    if task not in replacements:
        raise BadRequest(f"invalid task={task!r}; expected one of: {', '.join(replacements)}", param="task", value=task)
    replacement = replacements[task] if config.convert == "auto" else {}
    flags = " ".join(f"--{name} {value}" for name, value in {"runner": "pooling", **replacement}.items())
    logger.info("task=%s is deprecated; use %s", task, flags)
    return replace(config, runner="pooling", task=task, **replacement)
