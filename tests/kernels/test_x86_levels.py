"""The kernels of the x86-64 levels give the results of those for aarch64, and every aarch64 level those of the others.

QEMU emulates all instructions of the aarch64 levels. Of x86-64 it emulates AVX2, but neither AVX-512 nor VNNI, BF16 and
AMX: for these, the kernels are compiled for AVX2 with a header that has the missing instructions in plain C. The
instructions that the compiler selects for AVX-512 are run only if this CPU has them.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tests.kernels.cross_compile import (
    ARM_LEVELS,
    KERNELS,
    MACHINES,
    PRODUCT_DRIVER,
    compile_c,
    emulate_arm,
    is_host,
    run_command,
)

CPU = KERNELS / "cpu"
DRIVERS = {"products": PRODUCT_DRIVER, "encoder": Path(__file__).with_name("encoder_driver.c")}
SHARED = ["levels.c", "linear.c", "attention.c", "scratch.c"]
EMULATED = Path(__file__).with_name("emulated")
HIDDEN, OUTPUTS_PER_FORMAT = 48, 5 * 75 * 48  # of encoder_driver.c
EMULATED_LEVELS = {
    "avx2_vnni": ["float32", "int8"],
    "avx512": ["float32"],
    "avx512_vnni": ["float32", "int8"],
    "avx512_bf16": ["float32", "bfloat16", "int8"],
    "amx": ["float32", "bfloat16", "int8"],
}  # with their formats
# least cosine with the outputs of float32: at least the first; not the second, which only float32 again would reach
COSINES = {
    "float16": (0.9999, 0.99999),
    "bfloat16": (0.9999, 0.999999),
    "int8": (0.998, 0.9999),
    "float16_attention": (0.99999, 0.9999995),
}


def compile_drivers(sources: list[Path], folder: Path, *flags: str) -> dict[str, Path]:
    flags = (*flags, "-static", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-Wno-psabi")
    objects = [compile_c("x86_64", [source], folder / f"{source.stem}.o", *flags, "-c") for source in sources]
    return {name: compile_c("x86_64", [*objects, path], folder / name, *flags) for name, path in DRIVERS.items()}


def list_sources(folder: Path) -> list[Path]:
    return [*(folder / name for name in SHARED), *sorted(folder.glob("x86_*.c"))]


@pytest.fixture(scope="module")
def x86_programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    amx = [*(KERNELS / name for name in ("native_attention.c", "native_processor.c")), EMULATED / "no_amx_layers.c"]
    return compile_drivers([*list_sources(CPU), *amx], tmp_path_factory.mktemp("x86"), f"-I{CPU}")


@pytest.fixture(scope="module")
def programs_with_emulated_instructions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("emulated")
    for source in CPU.glob("*.[ch]"):
        (folder / source.name).write_text(re.sub("#pragma GCC target.*", "", source.read_text()))
    # -O1: gcc takes long to vectorize what the header does lane by lane
    flags = ("-O1", "-mavx2", "-mfma", f"-I{EMULATED}", "-D__builtin_cpu_supports(x)=1")
    amx = [EMULATED / name for name in ("amx.c", "no_amx_attention.c", "no_amx_layers.c")]
    return compile_drivers([*list_sources(folder), *amx], folder, *flags, f"-I{folder}")


@pytest.fixture(scope="module")
def arm_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [CPU / name for name in SHARED] + sorted(CPU.glob("arm_*.c"))
    target = tmp_path_factory.mktemp("arm") / "encoder"
    return compile_c("aarch64", [*sources, DRIVERS["encoder"]], target, "-static")


@pytest.fixture(scope="module")
def emulated_arm(arm_encoder: Path) -> Callable[[str], dict[str, Tensor]]:
    """Return a function from an aarch64 level to the outputs of the encoder on an emulated CPU."""
    return cache(lambda level: read_outputs(emulate_arm(arm_encoder, level, "max")))


@pytest.fixture(scope="module")
def reference(arm_encoder: Path) -> dict[str, Tensor]:
    """Outputs of the encoder with the kernels of level `dotprod`."""
    return read_outputs([*run_command("aarch64", arm_encoder), "dotprod"])


def read_outputs(command: list[str]) -> dict[str, Tensor]:
    """Return the outputs by the name of their format."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        pytest.skip(f"this CPU lacks level {command[-1]}")
    assert done.returncode == 0
    _, *parts = re.split(r"^# (\w+)\n", done.stdout, flags=re.MULTILINE)
    outputs = {
        name: torch.tensor([float(line) for line in lines.split()])
        for name, lines in zip(parts[::2], parts[1::2], strict=True)
    }
    assert {len(values) for values in outputs.values()} == {OUTPUTS_PER_FORMAT}
    return outputs


def run_x86(program: Path, level: str) -> list[str]:
    emulated = [MACHINES["x86_64"][1], "-cpu", "max"]
    command = run_command("x86_64", program)
    return [*(command if is_host("x86_64") else [*emulated, str(program)]), level]


def assert_outputs_agree(found: dict[str, Tensor], reference: dict[str, Tensor]) -> None:
    torch.testing.assert_close(found["float32"], reference["float32"], atol=2e-5, rtol=0)
    for name, (lowest, of_float32) in COSINES.items():
        if name in found:
            assert lowest <= min_cosine(found[name], reference["float32"]) < of_float32, name
    if "int8" in found:  # a rounding difference of float32 may change an integer of the next layer
        assert min_cosine(found["int8"], reference["int8"]) > 0.999


def min_cosine(found: Tensor, expected: Tensor) -> float:
    rows, expected_rows = (x.double().view(-1, HIDDEN) for x in (found, expected))
    return cosine_similarity(rows, expected_rows, dim=-1).min().item()


def test_avx2_products_equal_plain_sums(x86_programs: dict[str, Path]) -> None:
    done = subprocess.run(run_x86(x86_programs["products"], "avx2"), capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("level", ["avx2", *EMULATED_LEVELS])
def test_an_encoder_gives_the_outputs_of_aarch64(
    x86_programs: dict[str, Path], reference: dict[str, Tensor], level: str
) -> None:
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
    programs_with_emulated_instructions: dict[str, Path], reference: dict[str, Tensor], level: str
) -> None:
    found = read_outputs(run_x86(programs_with_emulated_instructions["encoder"], level))

    assert list(found) == EMULATED_LEVELS[level]
    assert_outputs_agree(found, reference)


@pytest.mark.parametrize("level", ARM_LEVELS)
def test_an_encoder_in_every_format_of_an_aarch64_level_is_close_to_float32(
    emulated_arm: Callable[[str], dict[str, Tensor]], reference: dict[str, Tensor], level: str
) -> None:
    found = emulated_arm(level)

    attention = ["float16_attention", "large_float16_attention", "large_float32_attention"]
    assert list(found) == [*ARM_LEVELS[level], *(attention if "float16" in ARM_LEVELS[level] else [])]
    assert_outputs_agree(found, reference)


@pytest.mark.parametrize("level", ["i8mm", "bf16"])
def test_an_int8_encoder_gives_the_same_bits_on_aarch64_levels_with_other_products(
    emulated_arm: Callable[[str], dict[str, Tensor]], level: str
) -> None:
    assert torch.equal(emulated_arm(level)["int8"], emulated_arm("dotprod")["int8"])


@pytest.mark.parametrize("level", [level for level, formats in ARM_LEVELS.items() if "float16" in formats])
def test_attention_over_values_too_large_for_float16_is_that_of_float32(
    emulated_arm: Callable[[str], dict[str, Tensor]], level: str
) -> None:
    found = emulated_arm(level)

    assert found["large_float16_attention"].isfinite().all()
    assert torch.equal(found["large_float16_attention"], found["large_float32_attention"])
