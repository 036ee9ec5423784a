"""CPU features are read from /proc/cpuinfo and limited by environment variables."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cenote.config.engine import EXTRA_VARIABLES
from cenote.errors import LoadError
from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import find_kernel_level
from cenote.kernels.cpu_features import CPU_LEVEL, ISA_LEVELS, CPUFeatures, cpu_features, cpu_name

SAPPHIRE_RAPIDS = (
    "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8481C CPU\n"
    "flags\t\t: fpu sse2 fma avx2 avx_vnni avx512f avx512bw avx512dq avx512vl avx512_vnni avx512_bf16 "
    "amx_tile amx_bf16 amx_int8\n\n"
)
HASWELL = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2680 v3\nflags\t\t: fpu sse2 fma avx2\n\n"
NEOVERSE_N1 = (
    "processor\t: 0\nFeatures\t: fp asimd fphp asimdhp asimddp\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    "CPU variant\t: 0x3\nCPU part\t: 0xd0c\nCPU revision\t: 1\n\n"
)
NEOVERSE_V2 = NEOVERSE_N1.replace("asimddp", "asimddp sve i8mm bf16").replace("0xd0c", "0xd4f")


@pytest.fixture
def cpuinfo(tmp_path: Path) -> Path:
    return tmp_path / "cpuinfo"


def features(cpuinfo: Path, text: str, machine: str, **environment: str) -> CPUFeatures:
    cpuinfo.write_text(text)
    return cpu_features(environment, cpuinfo=cpuinfo, machine=machine)


@pytest.mark.parametrize(
    ("text", "machine", "bfloat16", "int8", "amx"),
    [
        (SAPPHIRE_RAPIDS, "x86_64", True, True, True),
        (HASWELL, "x86_64", False, False, False),
        (HASWELL.replace("avx2", "avx2 avx512f avx512_vnni"), "x86_64", False, True, False),
        (HASWELL.replace("avx2", "avx2 avx512f avx512_vnni avx512_bf16"), "AMD64", True, True, False),
        (NEOVERSE_N1, "aarch64", False, False, False),
        (NEOVERSE_V2, "arm64", True, False, False),
        ("", "aarch64", False, False, False),
        ("cpu\t: POWER9\n", "ppc64le", False, False, False),
    ],
)
def test_instruction_sets_are_read_from_the_flags_of_the_cpu(
    cpuinfo: Path, text: str, machine: str, bfloat16: bool, int8: bool, amx: bool
) -> None:
    found = features(cpuinfo, text, machine)

    assert (found.has_bfloat16, found.has_int8, found.has_amx) == (bfloat16, int8, amx)


def test_an_instruction_set_counts_when_every_core_has_it(cpuinfo: Path) -> None:
    assert features(cpuinfo, NEOVERSE_V2 * 2, "aarch64").has_bfloat16
    cpuinfo.with_name("mixed").write_text(NEOVERSE_V2 + NEOVERSE_N1)
    assert not cpu_features({}, cpuinfo=cpuinfo.with_name("mixed"), machine="aarch64").has_bfloat16


def test_a_system_without_cpuinfo_has_no_instruction_sets(cpuinfo: Path) -> None:
    assert cpu_features({}, cpuinfo=cpuinfo, machine="x86_64").flags == frozenset()


@pytest.mark.parametrize(
    ("level", "bfloat16", "int8", "amx"),
    [
        ("baseline", False, False, False),
        ("avx2", False, False, False),
        ("avx512", False, False, False),
        ("avx512_vnni", False, True, False),
        ("avx512_bf16", True, True, False),
        ("AMX", True, True, True),
        ("", True, True, True),
    ],
)
def test_cenote_cpu_level_lowers_the_level(cpuinfo: Path, level: str, bfloat16: bool, int8: bool, amx: bool) -> None:
    found = features(cpuinfo, SAPPHIRE_RAPIDS, "x86_64", **{CPU_LEVEL: level})

    assert (found.has_bfloat16, found.has_int8, found.has_amx) == (bfloat16, int8, amx)


class LibraryOfEveryLevel:
    """The level table of the C library on a CPU that has all of its levels."""

    def __init__(self) -> None:
        text = (Path(library.__file__).parent / "levels.c").read_text()
        self.names = re.findall(r'^ +\{?"(\w+)", ?(?:has_\w+,)?', text, flags=re.MULTILINE)
        self.cenote_find_level = lambda name: (
            self.names.index(name.decode()) + 1 if name.decode() in self.names else None
        )

    def cenote_product_layout(self, level: int, format: int, address: int) -> None:
        """Write one that is not empty: every level has products of all formats."""
        (ctypes.c_int64 * 4).from_address(address)[:] = [8, 32, 1, 0]


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        (SAPPHIRE_RAPIDS, "", "avx512_bf16"),  # AMX has kernels of its own, but none for float32
        (SAPPHIRE_RAPIDS, "avx512_bf16", "avx512_bf16"),
        (SAPPHIRE_RAPIDS, "avx512_vnni", "avx512_vnni"),
        (SAPPHIRE_RAPIDS, "avx512", "avx512"),
        (SAPPHIRE_RAPIDS, "avx2_vnni", "avx2_vnni"),
        (SAPPHIRE_RAPIDS, "avx2", "avx2"),
        (SAPPHIRE_RAPIDS, "baseline", None),
        (HASWELL, "", "avx2"),
        (HASWELL.replace("avx2", "avx"), "", None),
        (NEOVERSE_V2, "", "bf16"),
        (NEOVERSE_V2, "i8mm", "i8mm"),
        (NEOVERSE_N1, "", "dotprod"),
    ],
)
def test_the_level_of_the_kernels_is_the_highest_of_the_cpu_within_the_limit(
    cpuinfo: Path, text: str, limit: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = features(cpuinfo, text, "aarch64" if "asimd" in text else "x86_64", **{CPU_LEVEL: limit})
    monkeypatch.setattr(library, "cpu_features", lambda: found)
    monkeypatch.setattr(library, "open_library", lambda _: LibraryOfEveryLevel())
    library.find_level.cache_clear()

    level = library.load_level()

    library.find_level.cache_clear()
    assert (None if level is None else level.name) == expected
    assert found.has_level == (expected is not None)
    if level is not None:
        assert list(level.products) == (["float32"] if found.has_amx else list(library.FORMATS))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({}, "amx"), ({CPU_LEVEL: "avx512_bf16"}, None), ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, None)],
)
@pytest.mark.parametrize("has_level", [True, False])
def test_the_level_of_amx_is_found_within_the_limits_if_the_library_has_it(
    cpuinfo: Path, limits: dict[str, str], expected: str | None, has_level: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, every_level = features(cpuinfo, SAPPHIRE_RAPIDS, "x86_64", **limits), LibraryOfEveryLevel()
    if not has_level:  # as if gcc were older than 11
        every_level.names.remove("amx")
    monkeypatch.setattr(library, "cpu_features", lambda: found)
    monkeypatch.setattr(library, "open_library", lambda _: every_level)
    library.find_amx_level.cache_clear()

    level = library.load_amx_level()

    library.find_amx_level.cache_clear()
    assert (None if level is None else level.name) == (expected if has_level else None)


@pytest.mark.parametrize("has_kernels", [True, False])
def test_amx_is_the_level_of_bfloat16_models_only(
    cpuinfo: Path, has_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = features(cpuinfo, SAPPHIRE_RAPIDS, "x86_64")
    monkeypatch.setattr(library, "cpu_features", lambda: found)
    monkeypatch.setattr(library, "open_library", lambda _: LibraryOfEveryLevel())
    monkeypatch.setattr("cenote.kernels.native_library.is_available", lambda: has_kernels)
    library.find_level.cache_clear()

    levels = [
        find_kernel_level("bfloat16"),
        find_kernel_level("bfloat16", "bfloat16", "int8"),
        find_kernel_level("float32"),
        find_kernel_level("float32", "float32", "int8"),
    ]

    library.find_level.cache_clear()
    of_bfloat16 = "amx" if has_kernels else "baseline"
    assert levels == [of_bfloat16, of_bfloat16, "avx512_bf16", "baseline"]


@pytest.mark.parametrize(("level", "bfloat16"), [("baseline", False), ("i8mm", False), ("bf16", True)])
def test_cenote_cpu_level_lowers_the_level_of_arm(cpuinfo: Path, level: str, bfloat16: bool) -> None:
    found = features(cpuinfo, NEOVERSE_V2, "aarch64", **{CPU_LEVEL: level})

    assert found.has_bfloat16 is bfloat16
    assert ("i8mm" in found.flags) is (level != "baseline")


def test_cenote_cpu_level_does_not_add_features(cpuinfo: Path) -> None:
    assert features(cpuinfo, HASWELL, "x86_64", **{CPU_LEVEL: "amx"}).flags == {"fpu", "sse2", "fma", "avx2"}


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_an_unknown_level_is_refused_with_the_valid_ones(cpuinfo: Path, machine: str) -> None:
    with pytest.raises(LoadError, match=f"invalid {CPU_LEVEL}='avx3' on {machine}; expected one of: baseline, "):
        features(cpuinfo, SAPPHIRE_RAPIDS, machine, **{CPU_LEVEL: "avx3"})


@pytest.mark.parametrize(
    ("variable", "value", "bfloat16", "amx"),
    [
        ("ONEDNN_MAX_CPU_ISA", "AVX2", False, False),
        ("DNNL_MAX_CPU_ISA", "avx512_core", False, False),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16", True, False),
        ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_AMX", True, True),
        ("ONEDNN_MAX_CPU_ISA", "DEFAULT", True, True),
    ],
)
def test_the_limit_of_onednn_applies_too(cpuinfo: Path, variable: str, value: str, bfloat16: bool, amx: bool) -> None:
    found = features(cpuinfo, SAPPHIRE_RAPIDS, "x86_64", **{variable: value})

    assert (found.has_bfloat16, found.has_amx) == (bfloat16, amx)


def test_the_lower_of_two_limits_applies(cpuinfo: Path) -> None:
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", CPU_LEVEL: "avx2"}

    assert not features(cpuinfo, SAPPHIRE_RAPIDS, "x86_64", **environment).has_bfloat16


def test_the_limit_of_onednn_does_not_apply_to_arm(cpuinfo: Path) -> None:
    assert features(cpuinfo, NEOVERSE_V2, "aarch64", ONEDNN_MAX_CPU_ISA="AVX2").flags >= ISA_LEVELS["arm"]["dotprod"]


def test_native_code_is_unavailable_below_the_amx_level() -> None:
    code = "from cenote.kernels import native_library; print(native_library.is_available())"
    environment = {**os.environ, CPU_LEVEL: "baseline"}

    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False"]


def test_the_server_accepts_cenote_cpu_level() -> None:
    assert CPU_LEVEL in EXTRA_VARIABLES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SAPPHIRE_RAPIDS * 2, "Intel(R) Xeon(R) Platinum 8481C CPU"),
        (NEOVERSE_N1 * 2, "ARM Neoverse-N1"),
        (NEOVERSE_V2, "ARM Neoverse-V2"),
        (NEOVERSE_N1.replace("0x41", "0xc0").replace("0xd0c", "0xac3"), "Ampere AmpereOne"),
        (NEOVERSE_N1.replace("0x41", "0x61").replace("0xd0c", "0x000"), "Apple part 0x000"),
        (NEOVERSE_N1.replace("0x41", "0x99"), "implementer 0x99 part 0xd0c"),
        (
            NEOVERSE_N1.replace("0xd0c", "0xd46") + NEOVERSE_N1.replace("0xd0c", "0xd48"),
            "ARM Cortex-A510 + ARM Cortex-X2",
        ),
    ],
)
def test_the_cpu_has_a_name(cpuinfo: Path, text: str, name: str) -> None:
    cpuinfo.write_text(text)

    assert cpu_name(cpuinfo) == name


def test_a_cpu_without_a_model_name_is_named_after_its_architecture(cpuinfo: Path) -> None:
    assert cpu_name(cpuinfo) in (platform.processor(), platform.machine())
    assert cpu_name(cpuinfo)


def test_the_name_of_this_cpu_is_found_without_importing_torch() -> None:
    code = (
        "import sys; from cenote.bench.report import machine_info; "
        "print(machine_info()['processor'], 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    name, _, imported = done.stdout.strip().rpartition(" ")
    assert name and imported == "False"
