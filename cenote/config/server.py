"""ServerConfig: how the HTTP server listens, authenticates and logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cenote.config.options import normalize_log_level, option, option_fields, parse_port
from cenote.errors import BadRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server listens, whom it lets in and what it says."""

    host: str = option("the address to listen on", default="0.0.0.0")
    port: int = option("the port to listen on; 0: any that is free", default=8000, parse=parse_port)
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
        parse=normalize_log_level,
    )

    def __post_init__(self) -> None:
        for item in option_fields(type(self)):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value not in choices:
                raise BadRequest(f"{item.name}={value!r} is unknown; there are: {', '.join(choices)}", param=item.name)
        parse_port(self.port)
        if self.allow_credentials and "*" in self.allowed_origins:
            raise BadRequest("allow_credentials lets every web page use a visitor's cookies; name the allowed_origins")
        if any(not key.strip() for key in self.api_key):
            raise BadRequest("an empty api_key would open every door; leave it out, or give a key", param="api_key")
        if self.root_path and not self.root_path.startswith("/"):
            raise BadRequest(f"root_path={self.root_path!r} must begin with a slash", param="root_path")
        for name in ("api_server_count", "max_request_items", "max_body_bytes", "keep_alive_s"):
            if not getattr(self, name) > 0:
                raise BadRequest(f"{name}={getattr(self, name)!r} leaves no room for anything; give a number above 0")
