"""Optional native extensions, which pyproject.toml cannot declare; the install succeeds without them."""

import platform
import sys
from glob import glob

from setuptools import Extension, setup

# kernels of every instruction set of the architecture are in one library, and the CPU selects them when it is loaded.
# gcc 11 knows them all, and an older one leaves out the newest (kernels/cpu/compiler.h); without a compiler, `optional`
# lets the install go on
AMX = sorted(glob("cenote/kernels/native_*.c")) if platform.machine() == "x86_64" else []
NATIVE = Extension(
    "cenote.kernels._native",
    [*AMX, *sorted(glob("cenote/kernels/cpu/*.c"))],
    depends=[*glob("cenote/kernels/native*.h"), *glob("cenote/kernels/cpu/*.h")],
    extra_compile_args=["-O3", "-fopenmp", "-std=gnu11", "-fno-math-errno"],
    py_limited_api=True,
    optional=True,
)

# plain C that any compiler takes
TOKENIZERS = [
    Extension(
        f"cenote.inputs.{name}",
        sources,
        depends=glob("cenote/inputs/subword/*.h"),
        extra_compile_args=["-O3", "-std=gnu11"],
        py_limited_api=True,
        optional=True,
    )
    for name, sources in (
        ("_wordpiece", ["cenote/inputs/wordpiece.c"]),
        ("_subword", sorted(glob("cenote/inputs/subword/*.c"))),
    )
]

native = [NATIVE] if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") else []
# all are loaded by ctypes and use nothing of Python's C API: one wheel per platform serves all versions
setup(
    ext_modules=native + (TOKENIZERS if sys.platform != "win32" else []),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
