"""The C library runs without torch, and shares the OpenMP runtime of torch if that is imported before or after it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.kernels.levels import needs_level

pytestmark = [needs_level, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

MULTIPLY = """
import sys
import numpy as np
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.kernels.cpu.threads import num_threads, set_num_threads

def multiply():
    weight = np.arange(512 * 512, dtype=np.float32).reshape(512, 512) % 7
    rows = np.arange(64 * 512, dtype=np.float32).reshape(64, 512) % 5
    assert np.array_equal(PackedLinear(weight, None, None, "float32")(rows), rows @ weight.T)

def list_runtimes():
    with open("/proc/self/maps") as maps:
        return {line.split(maxsplit=5)[5].strip() for line in maps if "gomp" in line}

def multiply_with_torch():
    rows = torch.ones(512, 512)
    assert torch.equal(rows @ rows, torch.full((512, 512), 512.0))
"""
HIDE_TORCH = """
import importlib.machinery, sys
find_spec = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
"""


def run_script(script: str, **environment: str) -> str:
    code = MULTIPLY + script
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_kernels_import_no_torch() -> None:
    assert run_script("multiply(); print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("order", ["import torch\nmultiply()", "multiply()\nimport torch"])
def test_torch_and_the_kernels_share_one_openmp_runtime(order: str) -> None:
    assert run_script(f"{order}\nmultiply_with_torch(); multiply()\nprint(len(list_runtimes()))") == "1"


@pytest.mark.parametrize("limit", ["many", "1,2"])
def test_the_number_of_threads_is_that_of_torch_before_and_after_its_import(limit: str) -> None:
    script = "before = num_threads()\nimport torch\nprint(before == num_threads() == torch.get_num_threads())"

    assert run_script(script, OMP_NUM_THREADS=limit) == "True"


def test_a_number_of_threads_that_was_set_before_the_import_of_torch_stays() -> None:
    script = "set_num_threads(3)\nimport torch\nprint(num_threads(), torch.get_num_threads())"

    assert run_script(script) == "3 3"


def test_torch_and_the_kernels_have_the_same_number_of_threads() -> None:
    ours = "import torch\nset_num_threads(3)\nprint(torch.get_num_threads())"
    theirs = "import torch\ntorch.set_num_threads(3)\nprint(num_threads())"

    assert run_script(ours) == run_script(theirs) == "3"


def test_the_library_of_the_system_is_used_where_torch_is_not_installed() -> None:
    script = "multiply(); print(*(path for path in list_runtimes() if 'torch' in path))"

    assert run_script(HIDE_TORCH + script) == ""


def test_torch_computes_after_the_kernels_with_the_runtime_of_the_system() -> None:
    """As with a library that was opened before torch was installed, or a torch whose runtime is not found."""
    restore = "importlib.machinery.PathFinder.find_spec = find_spec\n"

    assert run_script(f"{HIDE_TORCH}multiply()\n{restore}import torch\nmultiply_with_torch(); multiply()") == ""
