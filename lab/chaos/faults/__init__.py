"""All faults, by name."""

from __future__ import annotations

from lab.chaos.faults.client_faults import BadBytes, Overload, SlowClients
from lab.chaos.faults.engine_faults import BadFrames, HangEngine, KillEngine, PoisonInput, StopEngineProcess
from lab.chaos.faults.fault import Fault
from lab.chaos.faults.server_faults import (
    ClockJump,
    FullDisk,
    LostFrontEnd,
    NoDescriptors,
    SlowDisk,
)

FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        KillEngine(),
        StopEngineProcess(),
        HangEngine(),
        PoisonInput(),
        BadFrames(),
        LostFrontEnd(),
        NoDescriptors(),
        SlowClients(),
        BadBytes(),
        Overload(),
        ClockJump(),
        FullDisk(),
        SlowDisk(),
    )
}
