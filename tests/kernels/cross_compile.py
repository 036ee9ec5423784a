"""Compile the C code for other architectures, and run it in an emulator."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

KERNELS = ROOT / "cenote/kernels"

NATIVE = [*sorted(KERNELS.glob("native_*.c")), *sorted((KERNELS / "cpu").glob("*.c"))]

PRODUCT_DRIVER = Path(__file__).with_name("product_driver.c")

# the flags of setup.py
FLAGS = ["-O3", "-std=gnu11", "-fno-math-errno"]

MACHINES = {  # compiler, emulator, Debian package of the compiler
    "x86_64": ("x86_64-linux-gnu-gcc", "qemu-x86_64", "gcc-x86-64-linux-gnu"),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64", "gcc-aarch64-linux-gnu"),
}

# formats of the products of every aarch64 level, in the order of the C code
ARM_LEVELS = {
    "neon": ["float32"],
    "fp16": ["float32", "float16"],
    "dotprod": ["float32", "float16", "int8"],
    "i8mm": ["float32", "float16", "int8"],
    "bf16": ["float32", "float16", "bfloat16", "int8"],
}


def is_host(machine: str) -> bool:
    return platform.machine() == machine and platform.system() == "Linux"


def compiler(machine: str) -> str:
    cross, _, package = MACHINES[machine]
    name = "gcc" if is_host(machine) else cross
    if shutil.which(name) is None:
        pytest.skip(
            f"no compiler for {machine}: {name} is not installed (Debian: {'gcc' if is_host(machine) else package})"
        )
    return name


def compile_c(machine: str, sources: list[Path], target: Path, *flags: str) -> Path:
    command = [compiler(machine), *FLAGS, *flags, *map(str, sources), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def run_command(machine: str, program: Path) -> list[str]:
    """Return the command that runs a program of that machine, with an emulator if needed."""
    if is_host(machine):
        return [str(program)]
    _, emulator, _ = MACHINES[machine]
    if shutil.which(emulator) is None:
        pytest.skip(f"no emulator for {machine}: {emulator} is not installed (Debian: qemu-user)")
    return [emulator, str(program)]


def emulate_arm(program: Path, level: str, cpu: str) -> list[str]:
    """Return the command that runs a driver on an emulated aarch64 CPU, also on a machine that is one."""
    emulator = MACHINES["aarch64"][1]
    if shutil.which(emulator) is None:
        pytest.skip(f"{emulator} is not installed (Debian: qemu-user)")
    return [emulator, "-cpu", cpu, str(program), level]
