"""On CPUs with AVX-512 and without AMX, the kernels for AMX pass their tests with emulated tile registers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cenote.kernels.cpu_features import ISA_LEVELS, cpu_features
from tests.kernels.cross_compile import NATIVE, ROOT, compile_c

EMULATED = Path(__file__).with_name("emulated")
AVX512 = ISA_LEVELS["x86"]["avx512"]
# those of all layers in one call; of the tests that repeat them with several numbers of threads only a decoder with two
TESTS = ["tests/kernels/test_native_encoder.py", "-k", "not same_bits or (level and change1 and 2])"]

pytestmark = pytest.mark.skipif(
    not cpu_features({}).flags >= AVX512 or cpu_features({}).has_amx, reason="needs AVX-512, and no AMX"
)


@pytest.mark.timeout(900)  # a product of tiles takes a thousand times as long
def test_the_kernels_for_amx_pass_their_tests_with_emulated_tiles(tmp_path: Path) -> None:
    sources = [path for path in NATIVE if path.name != "native_processor.c" and not path.name.startswith("arm_")]
    flags = ("-O2", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi", f"-I{EMULATED}")
    library = compile_c("x86_64", [*sources, EMULATED / "amx.c"], tmp_path / "amx.so", *flags)

    command = [sys.executable, "-m", "pytest", "-p", "tests.kernels.emulated.amx_plugin", *TESTS]
    environment = {**os.environ, "CENOTE_EMULATED_AMX": str(library)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout[-4000:]
    assert "skipped" not in done.stdout
