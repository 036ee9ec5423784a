"""The kernels of the x86-64 levels give the results of those for aarch64, in an emulator.

QEMU emulates AVX2, but neither AVX-512 nor VNNI, BF16 and AMX: for these, the kernels are compiled for AVX2 with a
header that has the missing instructions in plain C. The instructions that the compiler selects for AVX-512 are run only
if this CPU has them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tests.kernels.test_cross_compile import KERNELS, MACHINES, PRODUCT_DRIVER, compile_c, is_host, run_command

CPU = KERNELS / "cpu"
DRIVERS = {"products": PRODUCT_DRIVER, "encoder": Path(__file__).with_name("encoder_driver.c")}
SHARED = ["levels.c", "linear.c", "attention.c", "scratch.c"]
EMULATED = Path(__file__).with_name("emulated")
HIDDEN, OUTPUTS_PER_FORMAT = 48, 5 * 75 * 48  # of encoder_driver.c
EMULATED_LEVELS = {
    "avx2_vnni": 2,
    "avx512": 1,
    "avx512_vnni": 2,
    "avx512_bf16": 3,
    "amx": 3,
}  # with their number of formats


def compile_drivers(sources: list[Path], folder: Path, *flags: str) -> dict[str, Path]:
    flags = (*flags, "-static", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi")
    objects = [compile_c("x86_64", [source], folder / f"{source.stem}.o", *flags, "-c") for source in sources]
    return {name: compile_c("x86_64", [*objects, path], folder / name, *flags) for name, path in DRIVERS.items()}


def list_sources(folder: Path) -> list[Path]:
    return [*(folder / name for name in SHARED), *sorted(folder.glob("x86_*.c"))]


@pytest.fixture(scope="module")
def x86_programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    amx = [KERNELS / name for name in ("native_attention.c", "native_processor.c")]
    return compile_drivers([*list_sources(CPU), *amx], tmp_path_factory.mktemp("x86"))


@pytest.fixture(scope="module")
def programs_with_emulated_instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("emulated")
    for source in CPU.glob("*.[ch]"):
        (folder / source.name).write_text(re.sub("#pragma GCC target.*", "", source.read_text()))
    # -O1: gcc takes long to vectorize what the header does lane by lane
    flags = ("-O1", "-mavx2", "-mfma", f"-I{EMULATED}", "-D__builtin_cpu_supports(x)=1")
    amx = [EMULATED / name for name in ("amx.c", "no_amx_attention.c")]
    return compile_drivers([*list_sources(folder), *amx], folder, *flags, f"-I{folder}")


@pytest.fixture(scope="module")
def arm_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [CPU / name for name in SHARED] + sorted(CPU.glob("arm_*.c"))
    target = tmp_path_factory.mktemp("arm") / "encoder"
    return compile_c("aarch64", [*sources, DRIVERS["encoder"]], target, "-static")


@pytest.fixture(scope="module")
def reference(arm_encoder: Path) -> Tensor:
    """Outputs of the encoder with the kernels of level `dotprod`: float32, then int8."""
    return read_outputs([*run_command("aarch64", arm_encoder), "dotprod"])


def read_outputs(command: list[str]) -> Tensor:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        pytest.skip(f"this CPU lacks level {command[-1]}")
    assert done.returncode == 0
    return torch.tensor([float(line) for line in done.stdout.split()])


def run_x86(program: Path, level: str) -> list[str]:
    emulated = [MACHINES["x86_64"][1], "-cpu", "max"]
    command = run_command("x86_64", program)
    return [*(command if is_host("x86_64") else [*emulated, str(program)]), level]


def assert_outputs_agree(found: Tensor, reference: Tensor) -> None:
    float32, *others = found.view(-1, OUTPUTS_PER_FORMAT)
    reference_float32, reference_int8 = reference.view(-1, OUTPUTS_PER_FORMAT)
    torch.testing.assert_close(float32, reference_float32, atol=2e-5, rtol=0)
    if others:  # a rounding difference of float32 may change an integer of the next layer
        assert min_cosine(others[0], reference_int8) > 0.999
    if len(others) > 1:
        assert 0.9999 < min_cosine(others[1], reference_float32) < 0.999999  # bfloat16, and not float32 again


def min_cosine(found: Tensor, expected: Tensor) -> float:
    return cosine_similarity(found.view(-1, HIDDEN), expected.view(-1, HIDDEN), dim=-1).min().item()


def test_avx2_products_equal_plain_sums(x86_programs: dict[str, Path]) -> None:
    done = subprocess.run(run_x86(x86_programs["products"], "avx2"), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("level", ["avx2", *EMULATED_LEVELS])
def test_an_encoder_gives_the_outputs_of_aarch64(x86_programs: dict[str, Path], reference: Tensor, level: str) -> None:
    assert_outputs_agree(read_outputs(run_x86(x86_programs["encoder"], level)), reference)


@pytest.mark.parametrize("level", EMULATED_LEVELS)
def test_levels_that_the_emulator_lacks_are_not_found(x86_programs: dict[str, Path], level: str) -> None:
    if is_host("x86_64"):
        pytest.skip("this CPU may have the level")

    assert subprocess.run(run_x86(x86_programs["products"], level), check=False).returncode == 2


@pytest.mark.parametrize("level", EMULATED_LEVELS)
def test_products_with_emulated_instructions_equal_plain_sums(
    programs_with_emulated_instructions: dict[str, Path], level: str
) -> None:
    command = run_x86(programs_with_emulated_instructions["products"], level)

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("level", EMULATED_LEVELS)
def test_an_encoder_with_emulated_instructions_gives_the_outputs_of_aarch64(
    programs_with_emulated_instructions: dict[str, Path], reference: Tensor, level: str
) -> None:
    found = read_outputs(run_x86(programs_with_emulated_instructions["encoder"], level))

    assert len(found) == OUTPUTS_PER_FORMAT * EMULATED_LEVELS[level]
    assert_outputs_agree(found, reference)


def test_an_encoder_in_bfloat16_on_an_emulated_aarch64_cpu_is_close_to_float32(
    arm_encoder: Path, reference: Tensor
) -> None:
    emulator = MACHINES["aarch64"][1]
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed (Debian: qemu-user)")

    found = read_outputs([emulator, "-cpu", "max", str(arm_encoder), "bf16"])

    assert len(found) == OUTPUTS_PER_FORMAT * 3
    assert_outputs_agree(found, reference)
