"""CPU detection: the name of the CPU and the instruction sets that may be used. Does not import torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cenote.errors import LoadError

CPUINFO = Path("/proc/cpuinfo")
# limits the instruction sets that are used, to test the code paths of other CPUs
CPU_LEVEL = "CENOTE_CPU_LEVEL"

# levels from the lowest to the highest, each with the flags of /proc/cpuinfo that it adds
ISA_LEVELS: dict[str, dict[str, frozenset[str]]] = {
    "x86": {
        "baseline": frozenset(),
        "avx2": frozenset({"avx2", "fma"}),
        "avx2_vnni": frozenset({"avx_vnni"}),
        "avx512": frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
        "avx512_vnni": frozenset({"avx512_vnni"}),
        "avx512_bf16": frozenset({"avx512_bf16"}),
        "amx": frozenset({"amx_tile", "amx_bf16", "amx_int8"}),
    },
    "arm": {
        "baseline": frozenset(),
        "neon": frozenset({"asimd"}),
        "fp16": frozenset({"asimdhp"}),
        "dotprod": frozenset({"asimddp"}),
        "i8mm": frozenset({"i8mm"}),
        "bf16": frozenset({"bf16"}),
    },
    "other": {"baseline": frozenset()},
}
ARCHITECTURES = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm"}

# oneDNN's own limit, which applies to the native kernels as well; values not listed here do not limit them
ONEDNN_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
ONEDNN_LEVELS = {
    "SSE41": "baseline",
    "AVX": "baseline",
    "AVX2": "avx2",
    "AVX2_VNNI": "avx2_vnni",
    "AVX2_VNNI_2": "avx2_vnni",
    "AVX512_CORE": "avx512",
    "AVX512_CORE_VNNI": "avx512_vnni",
    "AVX512_CORE_BF16": "avx512_bf16",
    "AVX512_CORE_FP16": "avx512_bf16",
    "AVX10_1_512": "avx512_bf16",
}

# on ARM, /proc/cpuinfo has no name but the implementer and part numbers of the MIDR_EL1 register
ARM_PARTS = {
    "0x41": {
        "0xd03": "Cortex-A53",
        "0xd05": "Cortex-A55",
        "0xd07": "Cortex-A57",
        "0xd08": "Cortex-A72",
        "0xd09": "Cortex-A73",
        "0xd0a": "Cortex-A75",
        "0xd0b": "Cortex-A76",
        "0xd0c": "Neoverse-N1",
        "0xd0d": "Cortex-A77",
        "0xd40": "Neoverse-V1",
        "0xd41": "Cortex-A78",
        "0xd44": "Cortex-X1",
        "0xd46": "Cortex-A510",
        "0xd47": "Cortex-A710",
        "0xd48": "Cortex-X2",
        "0xd49": "Neoverse-N2",
        "0xd4a": "Neoverse-E1",
        "0xd4d": "Cortex-A715",
        "0xd4e": "Cortex-X3",
        "0xd4f": "Neoverse-V2",
        "0xd80": "Cortex-A520",
        "0xd81": "Cortex-A720",
        "0xd82": "Cortex-X4",
        "0xd84": "Neoverse-V3",
        "0xd85": "Cortex-X925",
        "0xd87": "Cortex-A725",
        "0xd8e": "Neoverse-N3",
    },
    "0x43": {"0x0af": "ThunderX2"},
    "0x46": {"0x001": "A64FX"},
    "0x48": {"0xd01": "TaiShan v110", "0xd02": "TaiShan v120"},
    "0x4e": {"0x004": "Carmel", "0x010": "Olympus"},
    "0x51": {"0x001": "Oryon"},
    "0x61": {
        "0x022": "M1 Icestorm",
        "0x023": "M1 Firestorm",
        "0x032": "M2 Blizzard",
        "0x033": "M2 Avalanche",
    },
    "0x6d": {"0xd49": "Azure Cobalt 100"},
    "0xc0": {"0xac3": "AmpereOne", "0xac4": "AmpereOne A", "0xac5": "AmpereOne B"},
}
ARM_IMPLEMENTERS = {
    "0x41": "ARM",
    "0x43": "Cavium",
    "0x46": "Fujitsu",
    "0x48": "HiSilicon",
    "0x4e": "NVIDIA",
    "0x51": "Qualcomm",
    "0x61": "Apple",
    "0x6d": "Microsoft",
    "0xc0": "Ampere",
}


@dataclass(frozen=True, slots=True)
class CPUFeatures:
    """The instruction sets that may be used, by their names in /proc/cpuinfo."""

    architecture: str  # a key of ISA_LEVELS
    flags: frozenset[str]

    @property
    def has_bfloat16(self) -> bool:
        """Whether bfloat16 is multiplied in hardware; otherwise torch computes it far slower than float32."""
        return not self.flags.isdisjoint({"amx_bf16", "avx512_bf16", "bf16"})

    @property
    def has_int8(self) -> bool:
        """Whether int8 layers are fast without the kernels of a level: with AMX, or AVX512-VNNI in oneDNN."""
        return not self.flags.isdisjoint({"amx_int8", "avx512_vnni"})

    @property
    def has_level(self) -> bool:
        """Whether there are C kernels for this CPU: those of a level above the baseline."""
        return any(flags and flags <= self.flags for flags in ISA_LEVELS[self.architecture].values())

    @property
    def level(self) -> str:
        """The highest level that this CPU has."""
        levels = ISA_LEVELS[self.architecture]
        return next(name for name in reversed(levels) if levels[name] <= self.flags)

    @property
    def has_amx(self) -> bool:
        return self.flags >= ISA_LEVELS["x86"]["amx"]


def cpu_features(
    environment: Mapping[str, str] = os.environ, *, cpuinfo: Path = CPUINFO, machine: str | None = None
) -> CPUFeatures:
    """Return the features of /proc/cpuinfo, limited by ONEDNN_MAX_CPU_ISA and CENOTE_CPU_LEVEL."""
    machine = machine or platform.machine()
    architecture = ARCHITECTURES.get(machine.lower(), "other")
    levels = ISA_LEVELS[architecture]
    names = list(levels)
    limits = [len(names) - 1]
    if architecture == "x86":
        value = next((environment[name] for name in ONEDNN_VARIABLES if environment.get(name)), "")
        limits += [names.index(ONEDNN_LEVELS[value.upper()])] if value.upper() in ONEDNN_LEVELS else []
    if value := environment.get(CPU_LEVEL, "").strip().lower():
        if value not in levels:
            raise LoadError(f"invalid {CPU_LEVEL}={value!r} on {machine}; expected one of: {', '.join(names)}")
        limits.append(names.index(value))
    above = frozenset[str]().union(*(levels[name] for name in names[min(limits) + 1 :]))
    return CPUFeatures(architecture, common_flags(cpuinfo) - above)


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Return the model name of the CPU as reported by the system; never empty."""
    # a CPU may have several kinds of cores: list each kind once
    names = dict.fromkeys(_core_name(fields) for fields in _read_cpuinfo(cpuinfo))
    return " + ".join(filter(None, names)) or _system_cpu_name()


@cache
def _read_cpuinfo(cpuinfo: Path) -> tuple[dict[str, str], ...]:
    """Return the fields of /proc/cpuinfo per core; empty if the file cannot be read."""
    try:
        text = cpuinfo.read_text(errors="replace")
    except OSError:
        return ()
    return tuple(
        {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in paragraph.splitlines())}
        for paragraph in text.split("\n\n")
    )


def common_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags that every core has, since a thread may run on any core."""
    flags_by_core = [
        frozenset((fields.get("flags") or fields["Features"]).split())
        for fields in _read_cpuinfo(cpuinfo)
        if "flags" in fields or "Features" in fields
    ]
    return flags_by_core[0].intersection(*flags_by_core) if flags_by_core else frozenset()


def _core_name(core: Mapping[str, str]) -> str:
    implementer, part = core.get("CPU implementer", "").lower(), core.get("CPU part", "").lower()
    if not part:
        return core.get("model name", "")
    maker = ARM_IMPLEMENTERS.get(implementer, f"implementer {implementer}")
    return f"{maker} {ARM_PARTS.get(implementer, {}).get(part, f'part {part}')}"


def _system_cpu_name() -> str:
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError):
            if name := subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip():
                return name
    return platform.processor() or platform.machine() or "unknown"
