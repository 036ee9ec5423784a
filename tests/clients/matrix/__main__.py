"""Check published clients against real servers: `make clients`, or `python -m tests.clients.matrix --groups cohere`.

Every group of clients has an environment of its own and a file with its checks, which its own interpreter runs. Each
check compares what the client returns with the plain answer of the same server. The exit status is 1 if a client that
should work does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.clients.matrix.environments import JAVASCRIPT, make_command, prepare_environment
from tests.clients.matrix.report import Row, format_markdown, print_table
from tests.clients.matrix.servers import KEY, run_servers

# file with the checks -> environment
GROUPS = {
    "openai_clients.py": "vendors",
    "cohere_clients.py": "vendors",
    "vendor_clients.py": "vendors",
    "replayed_requests.py": "vendors",
    "litellm_clients.py": "litellm",
    "langchain_clients.py": "langchain",
    "llama_index_clients.py": "llama_index",
    "haystack_clients.py": "haystack",
    "store_clients.py": "stores",
    "agent_clients.py": "agents",
    "benchmark_clients.py": "benchmarks",
    "javascript_clients.mjs": JAVASCRIPT,
}
FOLDER = Path(__file__).parent / "groups"
GROUP_TIMEOUT_S = 900


def main() -> int:
    options = parse_options()
    files = [file for file in GROUPS if not options.groups or any(file.startswith(name) for name in options.groups)]
    if not files:
        sys.exit(f"no group starts with {options.groups}; groups: {', '.join(GROUPS)}")
    for environment in dict.fromkeys(GROUPS[file] for file in files):
        prepare_environment(environment, upgrade=options.upgrade)
    rows: list[Row] = []
    crashed = False
    with tempfile.TemporaryDirectory() as folder, run_servers(Path(folder)) as servers:
        for file in files:
            print(f"== {file} ==", flush=True)
            status = run_group(file, servers, rows)
            crashed |= status != 0
    if rows:
        print_table(rows)
    if options.markdown:
        Path(options.markdown).write_text(format_markdown(rows))
    return int(crashed or any(row.has_failed for row in rows))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.clients.matrix", description=__doc__)
    parser.add_argument("--groups", nargs="+", default=[], help=f"starts of the names of groups: {', '.join(GROUPS)}")
    parser.add_argument("--upgrade", action="store_true", help="install the latest versions of all clients")
    parser.add_argument("--markdown", metavar="FILE", help="write the table to a file")
    return parser.parse_args()


def run_group(file: str, servers: dict[str, str], rows: list[Row]) -> int:
    """Run the checks in a file, add their rows and return the exit status."""
    command, folder = make_command(GROUPS[file], FOLDER / file)
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment |= {"CLIENT_SERVERS": json.dumps(servers), "CLIENT_KEY": KEY, "DO_NOT_TRACK": "1"}
    for name in ("PYTHONPATH", "HF_HUB_OFFLINE"):  # with the latter, clients of the hub refuse every request
        environment.pop(name, None)
    try:
        process = subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True, timeout=GROUP_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        print(f"{file}: not finished after {GROUP_TIMEOUT_S} s", flush=True)
        return 1
    lines = [line.removeprefix("CHECK ") for line in process.stdout.splitlines() if line.startswith("CHECK ")]
    new_rows = [Row.from_json(json.loads(line)) for line in lines]
    for row in new_rows:
        print(f"{row.client}: {row.verdict}", flush=True)
    if process.returncode != 0:
        print(f"{file}: exit status {process.returncode}\n{process.stderr[-3000:]}", flush=True)
    rows += new_rows
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
