"""`cenote try`: serve on a free port of this machine and open the playground in a browser."""

from __future__ import annotations

import os
import threading
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence

from cenote.bench.spawn import find_free_port
from cenote.cli.option_sources import collect_options
from cenote.cli.parser import CommandParser
from cenote.cli.serve import add_serve_arguments, run_server
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import HttpClient, ServerUnreachable
from cenote.utils.progress import print_note

LOCAL_HOST = "127.0.0.1"
POLL_S = 0.2


def try_model(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    environment = dict(environment)
    options = collect_options(make_parser(), argv, environment)
    for name in ("uds", "ssl_certfile"):
        if options.get(name):
            flag = name.replace("_", "-")
            raise UsageError(f"cenote try opens http://{LOCAL_HOST}:PORT/ and has no --{flag}; use cenote serve")
    port = options.get("port", find_free_port())
    if port == 0:
        raise UsageError("--port 0 of cenote try: leave it out, a free port is selected")
    host = options.get("host") or LOCAL_HOST
    environment |= {"CENOTE_PORT": str(port), "CENOTE_HOST": host}
    address = f"http://{LOCAL_HOST if host == '0.0.0.0' else host}:{port}"
    threading.Thread(target=open_when_ready, args=(address,), daemon=True).start()
    return run_server(argv, environment)


def make_parser() -> CommandParser:
    parser = CommandParser(
        "try",
        "[MODEL ...]",
        "Serve models on a free port of this machine and open the playground in a browser. Options are those of "
        "cenote serve.",
        ["cenote try", "cenote try BAAI/bge-small-en-v1.5 cross-encoder/ms-marco-MiniLM-L6-v2"],
    )
    add_serve_arguments(parser)
    return parser


def open_when_ready(address: str, open_page: Callable[[str], bool] = webbrowser.open) -> None:
    """Wait until the models are loaded, then open the page, or print its address if there is no browser."""
    while not is_ready(address):
        time.sleep(POLL_S)
    print_note(f"the playground is at {address}/; Ctrl-C stops the server")
    if not open_page(f"{address}/"):
        print_note(f"no browser was found; open {address}/ yourself")


def is_ready(address: str) -> bool:
    with HttpClient(address, timeout_s=5) as client:
        try:
            return client.get("/health/ready").status == 200  # 503 while the models load
        except ServerUnreachable:
            return False
