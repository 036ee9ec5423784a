"""How much of what the system grants is in use: open files bound the connections, and memory the large requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from cenote.api.admission.counters import MEMORY, OPEN_FILES, Counters
from cenote.api.http.server_state import ServerState
from cenote.config.server import ServerConfig
from cenote.utils.system_limits import count_open_files, find_memory_limit, get_file_limit

CHECK_INTERVAL_S = 0.5
# Descriptors that connections leave free: for engine processes and links to them, key files, certificates and logs.
SPARE_FILES, SPARE_SHARE = 128, 1 / 8


def limit_connections(settings: ServerConfig) -> int:
    """Return how many HTTP connections, and as many of gRPC, one process may have."""
    wanted = -(-settings.max_connections // settings.api_server_count)  # connections are balanced over front-ends
    num_files = get_file_limit() - _count_spare_files()
    return max(1, min(wanted, num_files if settings.grpc_port is None else num_files // 2))


def describe_limit(settings: ServerConfig) -> str | None:
    """Return what to tell the operator if fewer connections are possible than --max-connections; else None."""
    total = limit_connections(settings) * settings.api_server_count
    if total >= settings.max_connections:
        return None
    return (
        f"at most {total} connections instead of {settings.max_connections} (--max-connections), as a process may open "
        f"{get_file_limit()} files; raise that limit (ulimit -n, LimitNOFILE= of systemd)"
    )


async def watch_pressure(state: ServerState, counters: Counters) -> None:
    """Measure until cancelled, and follow what other users of descriptors leave, or a limit that changes."""
    max_connections = state.max_connections
    memory = find_memory_limit()
    while True:
        limit, num_open = get_file_limit(), count_open_files()
        counters.own[OPEN_FILES] = num_open / limit
        num_free = limit - num_open - _count_spare_files() // 2
        state.max_connections = max(1, min(max_connections, len(state.connections) + num_free))
        if memory is not None:
            with suppress(OSError, ValueError):
                counters.own[MEMORY] = memory.read_use() / max(1, memory.num_bytes)
        await asyncio.sleep(CHECK_INTERVAL_S)


def _count_spare_files() -> int:
    limit = get_file_limit()
    return min(limit // 2, max(SPARE_FILES, int(limit * SPARE_SHARE)))
