"""Faults: what happens to the processes and links of a simulated server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from lab.protocol.engine_process import EngineProcess
from lab.protocol.machine import Machine


def kill_engine(machine: Machine, engine: EngineProcess) -> None:
    engine.exit(-machine.random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))


def crash_engine(machine: Machine, engine: EngineProcess) -> None:
    engine.exit(machine.random.choice((-signal.SIGSEGV, 1)))


def hang_device(machine: Machine, engine: EngineProcess) -> None:
    engine.hang()


def stop_itself(machine: Machine, engine: EngineProcess) -> None:
    engine.fail()


def stop_engine(machine: Machine, engine: EngineProcess) -> None:
    engine.stop()
    machine.loop.call_later(machine.random.choice((0.05, 0.5, 3.0, 9.0)), engine.resume)


def refuse_requests(machine: Machine, engine: EngineProcess) -> None:
    engine.refuses_until = machine.loop.time() + machine.random.uniform(0.05, 1.0)


ENGINE_FAULTS: tuple[Callable[[Machine, EngineProcess], None], ...] = (
    kill_engine,
    kill_engine,
    crash_engine,
    hang_device,
    stop_itself,
    stop_engine,
    refuse_requests,
)


def cut_link(machine: Machine) -> None:
    machine.random.choice(machine.links).cut()


def stall_link(machine: Machine) -> None:
    link = machine.random.choice(machine.random.choice((machine.links, machine.channels)))
    end = machine.random.choice((link, link.peer))
    end.stalled_until = machine.loop.time() + machine.random.choice((0.05, 0.5, 3.0))


def kill_front_end(machine: Machine) -> None:
    if (front_end := machine.random.choice(machine.front_ends)) is not None and not front_end.process.has_exited:
        front_end.kill()


def fail_next_start(machine: Machine) -> None:
    """Let the system refuse the next process, or what it loads be away; one that serves has to exit before.

    A model that cannot be loaded at the start of the server ends it.
    """
    has_started = machine.supervisor.models.rows["simulated"].was_ready
    machine.next_start_fails = machine.random.choice(("spawn", "early", "load") if has_started else ("spawn", "early"))
    for engine in machine.list_living()[:1]:
        engine.exit(-signal.SIGKILL)


def reload_model(machine: Machine) -> None:
    _administrate(machine, "reload")


def unload_model(machine: Machine) -> None:
    _administrate(machine, "unload")


def _administrate(machine: Machine, action: str) -> None:
    models = machine.supervisor.models

    async def change() -> None:
        try:
            await (models.reload("simulated", {}) if action == "reload" else models.unload("simulated"))
            machine.note(f"the {action} has ended")
        except Exception as error:  # such as a new engine that cannot be started: what it replaces stays
            machine.note(f"the {action} fails: {error}")

    machine.changes.append(asyncio.get_running_loop().create_task(change()))


MACHINE_FAULTS: tuple[Callable[[Machine], None], ...] = (
    cut_link,
    cut_link,
    stall_link,
    kill_front_end,
    fail_next_start,
    reload_model,
    unload_model,
)


def inject(machine: Machine) -> None:
    """Let one fault happen, chosen by the seed."""
    random = machine.random
    if random.random() < 0.5:
        fault = random.choice(ENGINE_FAULTS)
        if not (living := machine.list_living()):
            return
        engine = random.choice(living)
        machine.note(f"FAULT: {fault.__name__}, process {engine.pid}")
        fault(machine, engine)
        machine.faults[fault.__name__] += 1
    elif machine.links:
        change = random.choice(MACHINE_FAULTS)
        machine.note(f"FAULT: {change.__name__}")
        change(machine)
        machine.faults[change.__name__] += 1
