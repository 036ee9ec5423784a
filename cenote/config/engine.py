"""Every option, declared once: the flag, its help and the keyword of `LLM` follow from here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Generic, Literal, TypeVar

from cenote.config.ignored_options import has_no_effect
from cenote.errors import BadRequest
from cenote.protocol.requests import TASKS, check_type, current_task_name, one_spelling

logger = logging.getLogger("cenote")

Value = TypeVar("Value")
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
MIN_DISK_BYTES = 1024**2
# in one input, where nobody says: the reference's number
MAX_IMAGES = 999
MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Sourced(Generic[Value]):
    """A decision that remembers who took it."""

    value: Value
    source: str


def option(text: str, *, default: Any = MISSING, choices: tuple[str, ...] = (), parse: Any = None) -> Any:
    """A field with the help text, the allowed values and the reader that its flag uses."""
    return field(default=default, metadata={"help": text, "choices": choices, "parse": parse})


def human_number(text: str | int) -> int:
    """4096, "8k" (thousands), "8K" (of 1024), "1M", "-1" for automatic."""
    if isinstance(text, int):
        return text
    units = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}
    unit = units.get(text[-1:], 1)
    try:
        return round(float(text[:-1]) * unit) if unit > 1 else int(text)
    except (ValueError, OverflowError):
        raise BadRequest(f"{text!r} is no number of tokens; write 4096, 8k (8000) or 8K (8192)") from None


def human_bytes(text: str | int) -> int:
    """4096, "512M" (of 1024 * 1024), "2G"."""
    try:
        return human_number(text)
    except BadRequest:
        raise BadRequest(f"{text!r} is no number of bytes; write 4096, 512M or 2G") from None


def port_number(given: str | int) -> int:
    """A TCP port; 0 stands for any that is free."""
    try:
        port = int(given)
    except ValueError:
        port = -1
    if isinstance(given, bool) or not 0 <= port <= MAX_PORT:
        raise BadRequest(
            f"{given!r} is not a port; give a number from 1 to {MAX_PORT}, or 0 for any that is free", param="port"
        )
    return port


def level_name(text: str) -> str:
    """In our words, whichever logging library it was written for."""
    return {"warn": "warning", "trace": "debug"}.get(text.lower(), text.lower())


POOLER_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("task", "pooling_type", "seq_pooling_type", "tok_pooling_type"), (str,)),
    **dict.fromkeys(("use_activation", "normalize", "enable_chunked_processing"), (bool,)),
    **dict.fromkeys(("dimensions", "max_embed_len", "step_tag_id"), (int,)),
    **dict.fromkeys(("logit_mean", "logit_bias", "logit_sigma"), (float, int)),
    "returned_token_ids": (list, tuple),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolerConfig:
    """How token states become answers; what is unset follows Sentence Transformers files, then the model."""

    task: str | None = option("allow only this task; all the model supports when unset", default=None, choices=TASKS)
    pooling_type: str | None = option("CLS, LAST, MEAN for sequences, ALL, STEP for tokens", default=None)
    seq_pooling_type: str | None = option("how a sequence becomes one vector", default=None)
    tok_pooling_type: str | None = option("which tokens are returned", default=None)
    use_activation: bool | None = option("normalise embeddings, squash logits", default=None)
    normalize: bool | None = option("the older name of use_activation", default=None)
    dimensions: int | None = option("default size of Matryoshka embeddings", default=None)
    enable_chunked_processing: bool = option("embed texts longer than the model reads in pieces", default=False)
    max_embed_len: int | None = option("the longest input accepted, in tokens", default=None)
    logit_mean: float | None = option("subtracted from logits", default=None)
    logit_bias: float | None = option("the older name of logit_mean", default=None)
    logit_sigma: float | None = option("divides logits after that", default=None)
    step_tag_id: int | None = option("STEP returns the rows of this token", default=None)
    returned_token_ids: list[int] | None = option("STEP returns these columns", default=None)

    def __post_init__(self) -> None:
        set_now = object.__setattr__  # frozen for everybody but this method
        for name, kinds in POOLER_TYPES.items():
            check_type(name, getattr(self, name), kinds)
        set_now(self, "task", current_task_name(self.task))
        set_now(
            self,
            "use_activation",
            one_spelling("normalize", self.normalize, "use_activation", self.use_activation),
        )
        set_now(self, "normalize", None)
        if self.logit_bias is not None and self.logit_mean not in (None, self.logit_bias):
            raise BadRequest(
                f"`logit_bias` is the older name of `logit_mean`: got {self.logit_bias} and {self.logit_mean}; give one"
            )
        set_now(self, "logit_mean", self.logit_mean if self.logit_mean is not None else self.logit_bias)
        set_now(self, "logit_bias", None)
        if self.max_embed_len is not None and self.max_embed_len < 1:
            raise BadRequest(f"max_embed_len={self.max_embed_len} refuses every text; give 1 or more")
        if self.logit_sigma == 0:
            raise BadRequest("logit_sigma cannot be 0 (division by zero)")
        if self.pooling_type is not None:
            self._spread_pooling_type(self.pooling_type.upper())

    def _spread_pooling_type(self, kind: str) -> None:
        target = "tok_pooling_type" if kind in ("ALL", "STEP") else "seq_pooling_type"
        if getattr(self, target) not in (None, kind):
            raise BadRequest(f"Cannot set both `pooling_type` and `{target}`")
        object.__setattr__(self, target, kind)

    @classmethod
    def of(cls, given: PoolerConfig | Mapping[str, Any] | None) -> PoolerConfig:
        """From what `LLM` and the command line accept: an object, a mapping, nothing."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if not isinstance(given, Mapping):
            raise BadRequest(f"pooler_config is a PoolerConfig or a mapping, not {type(given).__name__}")
        refuse_unknown(given, {item.name for item in fields(cls)}, "pooler config")
        return cls(**given)


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
    max_model_len: int | None = option("read at most this many tokens (8k, 8K)", default=None, parse=human_number)
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
        "memory for answers to inputs that come again (512M); 0: none are kept", default=0, parse=human_bytes
    )
    result_cache_dir: str | None = option(
        "a folder that keeps them over restarts, for several processes if need be", default=None
    )
    result_cache_disk_bytes: int = option("the most that this folder holds", default=2 * 1024**3, parse=human_bytes)
    result_cache_shared: bool = option("one answer for all API keys; each has its own when unset", default=False)
    step_timeout_s: float = option("a batch that runs longer is given up, and the engine with it", default=600.0)
    trust_remote_code: bool = option("accepted and without effect: checkpoint code is never run", default=False)

    def __post_init__(self) -> None:
        for item in declared(type(self)):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value is not None and value not in (*choices, "generate"):
                raise BadRequest(f"{item.name}={value!r} is unknown; there are: {', '.join(choices)}", param=item.name)
        if not isinstance(self.result_cache_bytes, int) or self.result_cache_bytes < 0:
            raise BadRequest(f"result_cache_bytes={self.result_cache_bytes!r} is no number of bytes")
        if not isinstance(self.result_cache_disk_bytes, int) or self.result_cache_disk_bytes < MIN_DISK_BYTES:
            raise BadRequest(f"result_cache_disk_bytes={self.result_cache_disk_bytes!r} is too little; give 1M or more")
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_waiting_chars", "step_timeout_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise BadRequest(f"{name}={value!r} leaves no room for anything; give a number above 0", param=name)

    @property
    def max_images(self) -> int:
        """That one input may have."""
        limit = (self.limit_mm_per_prompt or {}).get("image", MAX_IMAGES)
        limit = limit.get("count", MAX_IMAGES) if isinstance(limit, Mapping) else limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise BadRequest(f'limit_mm_per_prompt={self.limit_mm_per_prompt!r} is no limit; write {{"image": 4}}')
        return limit

    @classmethod
    def of(cls, model: str | None = None, **given: Any) -> EngineConfig:
        """From the keywords of `LLM`, older spellings and options of the reference included."""
        # None is how programs say that they leave an option alone
        given = {name: value for name, value in given.items() if value is not None and not has_no_effect(name, value)}
        if type(given.get("dtype")).__module__ == "torch":
            given["dtype"] = str(given["dtype"]).removeprefix("torch.")
        given["pooler_config"] = _pooler_config(given)
        task = given.pop("task", None)
        if isinstance(given.get("max_model_len"), str | int):
            given["max_model_len"] = human_number(given["max_model_len"])
        for name in ("result_cache_bytes", "result_cache_disk_bytes"):
            if isinstance(given.get(name), str):
                given[name] = human_bytes(given[name])
        if isinstance(names := given.get("served_model_name"), list | tuple):
            given["served_model_name"] = names[0] if names else None
        refuse_unknown(given, {item.name for item in fields(cls)}, "engine option")
        return _apply_old_task(cls(model=model, **given), task)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server listens, whom it lets in and what it says."""

    host: str = option("the address to listen on", default="0.0.0.0")
    port: int = option("the port to listen on; 0: any that is free", default=8000, parse=port_number)
    uds: str | None = option("listen on this unix socket instead", default=None)
    served_model_name: tuple[str, ...] = option("names the model answers to; the first is used in replies", default=())
    api_key: tuple[str, ...] = option("keys that open every route but health", default=())
    api_key_file: str | None = option("a file with one key per line, or a folder of such files", default=None)
    api_server_count: int = option("front-end processes; 1: none, the engine's own process answers", default=1)
    max_request_items: int = option("inputs or documents in one request", default=2048)
    max_body_bytes: int = option("bytes in one request", default=64 * 1024**2)
    trust_request_chat_template: bool = option("run chat templates that come with requests", default=False)
    rerank_document_shape: Literal["object", "string"] = option(
        "how rerank results hold their document", default="object", choices=("object", "string")
    )
    root_path: str = option("the path under which a proxy shows the server", default="")
    allowed_origins: tuple[str, ...] = option("web origins that browsers may call from; none if unset", default=())
    allowed_methods: tuple[str, ...] = option("methods for them", default=("*",))
    allowed_headers: tuple[str, ...] = option("request headers for them", default=("*",))
    allow_credentials: bool = option("let them send cookies", default=False)
    ssl_keyfile: str | None = option("the private key; with a certificate the server speaks TLS", default=None)
    ssl_certfile: str | None = option("the certificate", default=None)
    ssl_ca_certs: str | None = option("certificates that may sign those of clients", default=None)
    ssl_cert_reqs: int = option("0: clients need no certificate, 1: may have one, 2: must", default=0)
    enable_ssl_refresh: bool = option("read the certificate anew when its file changes", default=False)
    keep_alive_s: float = option("how long an idle connection stays open", default=75.0)
    shutdown_timeout_s: float = option("how long a stop waits for requests that run", default=25.0)
    shutdown_delay_s: float = option("how long a stop goes on accepting, for load balancers to notice", default=0.3)
    enable_tokenizer_info_endpoint: bool = option("serve /tokenizer_info", default=False)
    skip_model_name_validation: bool = option("answer requests whatever model they name", default=False)
    allow_runtime_lora_updating: bool = option("serve /v1/load_lora_adapter and /v1/unload_lora_adapter", default=False)
    disable_docs: bool = option("no /docs and no /openapi.json", default=False)
    disable_access_log: bool = option("no log line per request", default=False)
    log_format: Literal["text", "json"] = option("of log lines", default="text", choices=("text", "json"))
    log_level: str = option(
        "of log lines",
        default="info",
        choices=("debug", "info", "warning", "error", "critical"),
        parse=level_name,
    )

    def __post_init__(self) -> None:
        for item in declared(type(self)):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value not in choices:
                raise BadRequest(f"{item.name}={value!r} is unknown; there are: {', '.join(choices)}", param=item.name)
        port_number(self.port)
        if self.allow_credentials and "*" in self.allowed_origins:
            raise BadRequest("allow_credentials lets every web page use a visitor's cookies; name the allowed_origins")
        if any(not key.strip() for key in self.api_key):
            raise BadRequest("an empty api_key would open every door; leave it out, or give a key", param="api_key")
        if self.root_path and not self.root_path.startswith("/"):
            raise BadRequest(f"root_path={self.root_path!r} must begin with a slash", param="root_path")
        for name in ("api_server_count", "max_request_items", "max_body_bytes", "keep_alive_s"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name}={getattr(self, name)!r} leaves no room for anything; give a number above 0")


def _pooler_config(given: dict[str, Any]) -> PoolerConfig:
    old, new = given.pop("override_pooler_config", None), given.pop("pooler_config", None)
    if old is not None and new is not None and old != new:
        raise BadRequest("`override_pooler_config` is the older name of `pooler_config`; give one of them")
    return PoolerConfig.of(new if new is not None else old)


def _apply_old_task(config: EngineConfig, task: str | None) -> EngineConfig:
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


def refuse_unknown(given: Mapping[str, Any], known: set[str], kind: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}"
            raise BadRequest(f"no {kind} is called {name!r}; {hint}", param=name)


def declared(config: type) -> list[Field[Any]]:
    """The options of a config class in the order of their declaration, for flags and documents."""
    return [item for item in fields(config) if "help" in item.metadata]
