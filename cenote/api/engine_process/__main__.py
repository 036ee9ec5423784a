"""Entry point of the engine process: `python -m cenote.api.engine_process`, with the numbers of inherited files."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

import uvloop

from cenote.api.background_load import SWITCH_INTERVAL_S, import_engine
from cenote.api.engine_process.engine_server import EngineServer, LoadEngine
from cenote.api.wire.control_messages import EngineInit
from cenote.api.wire.device_table import DeviceTable
from cenote.config.engine_json import decode_engine_config
from cenote.utils.child_process import ENGINE_OOM_SCORE, exit_with_parent, prefer_as_oom_victim

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")


def main(argv: Sequence[str], load_engine: LoadEngine | None = None) -> int:
    control_fd, links_fd, heartbeat_fd, table_fd = map(int, argv)
    exit_with_parent()
    prefer_as_oom_victim(ENGINE_OOM_SCORE)
    faulthandler.enable()  # the stack of a native crash goes to standard error, which the supervisor logs
    # a service manager may signal every process of the server, but only the supervisor decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    # the engine thread takes the interpreter back after every operation of torch; the event loop would keep it for
    # the default of 5 ms each time
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    async def serve() -> int:
        server = EngineServer(load_engine or load_pooling_engine, DeviceTable(table_fd))
        status = await server.serve(socket.socket(fileno=control_fd), socket.socket(fileno=links_fd), heartbeat_fd)
        if (stop := getattr(server.engine, "stop", None)) is not None:
            stop()
        server.control.close()
        return status

    return uvloop.run(serve())


def load_pooling_engine(init: EngineInit) -> PoolingEngine:
    engine = import_engine().load(decode_engine_config(init.config))
    for name, path in init.adapters.items():
        try:
            engine.add_adapter(name, path)
        except Exception as error:  # the base model and the other adapters still serve
            logger.error("the adapter %s (%s) could not be loaded again after a restart: %s", name, path, error)
    return engine


def run_and_exit(argv: Sequence[str]) -> NoReturn:
    exit_status = main(argv)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_status)  # a thread inside torch would abort a regular exit


if __name__ == "__main__":
    run_and_exit(sys.argv[1:])
