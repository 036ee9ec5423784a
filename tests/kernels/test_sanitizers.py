"""The C code runs its differential tests under AddressSanitizer and UndefinedBehaviorSanitizer without a report."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The flags of setup.py with less optimization, which takes half the time and checks more accesses; reports name lines.
FLAGS = ["-O1", "-g1", "-std=gnu11", "-fno-math-errno", "-fPIC", "-fopenmp", "-fno-omit-frame-pointer"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so")
NO_SOURCE = shutil.ignore_patterns("__pycache__", "*.so")
AMX = ["cenote/kernels/native_*.c"] if platform.machine() == "x86_64" else []
TOKENIZERS = {
    "cenote/inputs/_wordpiece.abi3.so": ["cenote/inputs/wordpiece.c"],
    "cenote/inputs/_subword.abi3.so": ["cenote/inputs/subword/*.c"],
}
KERNELS = {"cenote/kernels/_native.abi3.so": [*AMX, "cenote/kernels/cpu/*.c"]}
TOKENIZER_TESTS = ["tests/inputs/test_subword.py", "tests/inputs/test_wordpiece.py"]
KERNEL_TESTS = [
    *(f"tests/kernels/test_{name}.py" for name in ("linear", "native_rows", "native_encoder")),
    *(f"tests/kernels/test_{name}.py" for name in ("attention", "cpu_levels", "cpu_pooling")),
]
# They compare bits of several processes again and again, and results whose last bits depend on the optimization.
LEFT_OUT = "not same_bits and not activations_equal"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="loads the runtime libraries of GCC first")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests, in which nothing is compiled yet."""
    if shutil.which("gcc") is None or not os.path.isabs(find_runtime("libasan.so")):
        pytest.skip("no gcc with AddressSanitizer is installed")
    checkout = tmp_path_factory.mktemp("sanitized")
    for folder in ("cenote", "tests"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=NO_SOURCE)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    return checkout


def find_runtime(name: str) -> str:
    """Return the path of a library of GCC; its name alone if there is none."""
    command = ["gcc", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run_gcc(checkout: Path, *arguments: str) -> None:
    done = subprocess.run(
        ["gcc", *FLAGS, *SANITIZE, *arguments], cwd=checkout, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def compile_library(checkout: Path, target: str, patterns: Sequence[str]) -> None:
    sources = [source for pattern in patterns for source in sorted(glob(pattern, root_dir=checkout))]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(lambda source: run_gcc(checkout, "-c", source, "-o", f"{source}.o"), sources))
    run_gcc(checkout, "-shared", *(f"{source}.o" for source in sources), "-o", target)


def run_tests(checkout: Path, files: Sequence[str], code: str = "") -> subprocess.CompletedProcess[str]:
    """Run tests, or the code, of the copy with the libraries of the sanitizers loaded before all others."""
    environment = os.environ | {
        "LD_PRELOAD": " ".join(map(find_runtime, RUNTIMES)),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself frees nothing at exit
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": str(checkout),
        "OMP_NUM_THREADS": "1",
    }
    pytest_command = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow and not gpu", "-k", LEFT_OUT, *files]
    command = [sys.executable, *(["-c", code] if code else pytest_command)]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("libraries", "files"), [(TOKENIZERS, TOKENIZER_TESTS), (KERNELS, KERNEL_TESTS)], ids=["tokenizers", "kernels"]
)
def test_differential_tests_pass_under_the_sanitizers(
    checkout: Path, libraries: dict[str, list[str]], files: list[str]
) -> None:
    for target, patterns in libraries.items():
        compile_library(checkout, target, patterns)

    code = f"import ctypes, torch, cenote\nprint(cenote.__path__[0])\n[ctypes.CDLL(name) for name in {list(libraries)}]"
    loaded = run_tests(checkout, [], code)
    done = run_tests(checkout, files)

    assert loaded.returncode == 0 and loaded.stdout.strip() == str(checkout / "cenote"), loaded.stderr
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.mark.parametrize(
    ("statement", "report"),
    [
        ("*(volatile char *)((char *)malloc(number) + number) = 1", "heap-buffer-overflow"),
        ("number = 2147483647 + number", "runtime error: signed integer overflow"),
    ],
)
def test_a_defect_would_be_reported(checkout: Path, statement: str, report: str) -> None:
    source = f"#include <stdlib.h>\nint run(volatile int number) {{ {statement}; return number; }}\n"
    (checkout / "defect.c").write_text(source)
    compile_library(checkout, "defect.so", ["defect.c"])

    done = run_tests(checkout, [], code="import ctypes; ctypes.CDLL('./defect.so').run(8)")

    assert done.returncode != 0 and report in done.stderr
