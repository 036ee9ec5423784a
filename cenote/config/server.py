"""ServerConfig: how the HTTP server listens, authenticates and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cenote.config.options import (
    check_choices,
    check_positive,
    normalize_log_level,
    option,
    parse_bytes,
    parse_port,
    parse_token_count,
)
from cenote.errors import BadRequest
from cenote.utils.system_limits import count_cpus, count_memory_bytes

LOOPBACK, ALL_ADDRESSES = "127.0.0.1", "0.0.0.0"
MAX_AUTO_FRONT_ENDS = 8  # more do not help: the engine is busy then
MAX_AUTO_INFLIGHT_BYTES = 2 * 1024**3
POSITIVE_OPTIONS = (
    "api_server_count",
    "memory_budget",
    "gpu_memory_budget",
    "max_request_items",
    "max_tokenize_tokens",
    "max_body_bytes",
    "max_queue_tokens",
    "max_queue_seconds",
    "max_inflight_bytes",
    "max_connections",
    "request_timeout_s",
    "keep_alive_s",
)


def choose_inflight_bytes() -> int:
    """Return a quarter of the memory that the server may use: what it makes of a body takes several times its size."""
    return min(MAX_AUTO_INFLIGHT_BYTES, count_memory_bytes() // 4)


def parse_front_end_count(value: str | int) -> int:
    """Return the number of front-ends; "auto" leaves half of the cores to the engine and to others."""
    if value == "auto":
        return max(1, min(MAX_AUTO_FRONT_ENDS, count_cpus() // 2))
    return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of the HTTP server: address, authentication, limits, TLS and logging."""

    host: str | None = option(
        f"address to listen on. Default: {LOOPBACK}, which only this machine reaches, or {ALL_ADDRESSES} if API keys "
        "are set",
        default=None,
    )
    port: int = option("port to listen on; 0 selects a free port", default=8000, parse=parse_port)
    grpc_port: int | None = option(
        "port of the gRPC API of Text Embeddings Inference, on the same address; 0 selects a free port; needs "
        "the package grpcio",
        default=None,
        parse=parse_port,
    )
    uds: str | None = option("Unix domain socket to listen on instead of host and port", default=None)
    served_model_name: tuple[str, ...] = option(
        "names under which the model is served; the first is used in responses", default=()
    )
    models: str | None = option(
        "YAML file with the models to serve: a list of name, source, aliases, options, pinned, keep_alive_s, load",
        default=None,
    )
    memory_budget: int | None = option(
        "host memory for engine processes, such as 8G: the least recently used models are unloaded above it",
        default=None,
        parse=parse_bytes,
    )
    gpu_memory_budget: int | None = option("the same for the memory of GPUs", default=None, parse=parse_bytes)
    api_key: tuple[str, ...] = option(
        "API keys; they protect every route except health checks, the pages / and /docs, and /v1/cluster/auth",
        default=(),
    )
    api_key_file: str | None = option(
        "file with one API key per line and its settings, such as weight=2, or a folder of such files", default=None
    )
    admin_api_key: tuple[str, ...] = option(
        "API keys for admin routes, such as those that load adapters; other keys cannot use these then", default=()
    )
    allow_local_admin: bool = option(
        "without any API key, open admin routes to clients of this machine (loopback or a Unix domain socket); behind "
        "a proxy on the same machine that would be everybody",
        default=False,
    )
    api_server_count: int = option(
        "number of front-end processes, or auto for one per two cores",
        default=1,
        parse=parse_front_end_count,
    )
    in_process_engine: bool = option(
        "run the engine in the process of the server, for debugging: a crash of the engine then ends the server",
        default=False,
    )
    max_request_items: int = option("maximum number of inputs or documents in a request", default=2048)
    max_tokenize_tokens: int = option(
        "maximum tokens of a request to tokenize or detokenize", default=256 * 1024, parse=parse_token_count
    )
    max_body_bytes: int = option("maximum size of a request body in bytes", default=64 * 1024**2)
    max_queue_tokens: int = option(
        "maximum tokens of requests in flight, for each lane; larger requests are refused, others get 429 above it",
        default=32 * 1024**2,
        parse=parse_token_count,
    )
    max_queue_seconds: float | None = option(
        "maximum seconds of work in flight, by the measured speed; above it the server returns 429. Default: 1, for "
        "large requests 60, and a quarter of that while requests are refused",
        default=None,
    )
    max_inflight_bytes: int = option(
        "maximum bytes of request bodies and answers in memory, such as 2G; the server returns 429 above it. Default: "
        "2G, or a quarter of the memory of the machine or of its container if that is less",
        make_default=choose_inflight_bytes,
        parse=parse_bytes,
    )
    max_connections: int = option("maximum number of open connections", default=4096)
    request_timeout_s: float | None = option(
        "seconds after which a request gets 504, unless it sets its own timeout; none if unset", default=None
    )
    trust_request_chat_template: bool = option("accept chat templates in requests", default=False)
    auto_truncate: bool = option(
        "truncate inputs that are too long to the model maximum, unless the request decides it; otherwise they get 400",
        default=False,
    )
    token_ids: Literal["allow", "warn", "refuse", "decode"] = option(
        "token ids in requests of OpenAI's embeddings API that lack the special tokens of the model's tokenizer, such "
        "as those that LangChain sends by default: allow them, warn in a response header and the log, refuse them, or "
        "decode them with tiktoken_file",
        default="warn",
        choices=("allow", "warn", "refuse", "decode"),
    )
    tiktoken_file: str | None = option(
        "file of the tokenizer that decodes token ids, such as cl100k_base.tiktoken", default=None
    )
    rerank_document_shape: Literal["object", "string"] = option(
        "form of the document in the results of /rerank", default="object", choices=("object", "string")
    )
    root_path: str = option("path prefix under which a reverse proxy exposes the server", default="")
    allowed_origins: tuple[str, ...] = option("CORS: allowed origins; CORS is disabled if unset", default=())
    allowed_methods: tuple[str, ...] = option("CORS: allowed methods", default=("*",))
    allowed_headers: tuple[str, ...] = option("CORS: allowed request headers", default=("*",))
    allow_credentials: bool = option("CORS: allow credentials such as cookies", default=False)
    ssl_keyfile: str | None = option("file of the TLS private key", default=None)
    ssl_certfile: str | None = option("file of the TLS certificate; enables TLS", default=None)
    ssl_ca_certs: str | None = option(
        "file of the CA certificates that client certificates are verified with", default=None
    )
    ssl_cert_reqs: int = option("client certificates: 0 not requested, 1 optional, 2 required", default=0)
    enable_ssl_refresh: bool = option("reload the certificate when its file changes", default=False)
    keep_alive_s: float = option("seconds an idle connection is kept open", default=75.0)
    shutdown_timeout_s: float = option("seconds to drain in-flight requests on shutdown", default=25.0)
    shutdown_delay_s: float = option(
        "seconds to keep accepting after SIGTERM, so that load balancers can remove the server", default=0.3
    )
    replay_timeout_s: float = option(
        "seconds a request waits for another engine process when one has crashed; then it gets 503", default=60.0
    )
    enable_tokenizer_info_endpoint: bool = option("serve /tokenizer_info", default=False)
    skip_model_name_validation: bool = option("accept any model name in requests", default=False)
    allow_runtime_lora_updating: bool = option(
        "serve /v1/load_lora_adapter and /v1/unload_lora_adapter, which need an admin key", default=False
    )
    disable_docs: bool = option("do not serve /docs and /openapi.json", default=False)
    disable_ui: bool = option("do not serve the playground at /", default=False)
    disable_access_log: bool = option("do not log requests", default=False)
    disable_access_log_for_endpoints: str = option(
        "paths whose requests are not logged, separated by commas; health probes are logged at level debug only",
        default="",
    )
    log_format: Literal["text", "json"] = option("format of log lines", default="text", choices=("text", "json"))
    log_level: str = option(
        "minimum level of log lines",
        default="info",
        choices=("debug", "info", "warning", "error", "critical"),
        parse=normalize_log_level,
    )

    def __post_init__(self) -> None:
        check_choices(self)
        parse_port(self.port)
        if self.grpc_port is not None:
            parse_port(self.grpc_port)
            if self.grpc_port == self.port != 0 and not self.uds:
                raise BadRequest(f"grpc_port and port are both {self.port}; choose different ports", param="grpc_port")
        if self.allow_credentials and "*" in self.allowed_origins:
            raise BadRequest(
                'allow_credentials cannot be combined with allowed_origins "*": any web page could use a visitor\'s '
                "cookies; list the allowed_origins"
            )
        for name in ("api_key", "admin_api_key"):
            if any(not key.strip() for key in getattr(self, name)):
                raise BadRequest(f"{name} must not be empty", param=name)
        if (self.token_ids == "decode") != (self.tiktoken_file is not None):
            raise BadRequest(
                "token_ids decode needs tiktoken_file, which has no other use; set both or neither of them"
            )
        if self.in_process_engine and self.api_server_count > 1:
            raise BadRequest("in_process_engine needs api_server_count 1: other processes could not reach the engine")
        if self.root_path and not self.root_path.startswith("/"):
            raise BadRequest(f"root_path must start with a slash, got {self.root_path!r}", param="root_path")
        check_positive(self, POSITIVE_OPTIONS)

    @property
    def listen_host(self) -> str:
        """Return the address to listen on: without keys, no other machine can connect unless `host` says so."""
        if self.host is not None:
            return self.host
        return ALL_ADDRESSES if self.has_keys else LOOPBACK

    @property
    def has_keys(self) -> bool:
        return bool(self.api_key or self.api_key_file or self.admin_api_key)

    def describe_reach(self) -> str:
        """Return who can connect, the option that decides it, and the option that changes it."""
        if self.host is not None:
            return f"clients that reach {self.host or 'any address of this machine'} (--host)"
        if self.has_keys:
            return f"other machines too, as API keys are set; --host {LOOPBACK} closes it to them"
        return f"this machine only, as neither --host nor an API key is set; --host {ALL_ADDRESSES} opens it to others"
