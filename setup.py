"""The one thing pyproject.toml cannot say: native code that is built where it can be, and done without elsewhere."""

import platform
import sys

from setuptools import Extension, setup

# AMX needs gcc 11 or newer; `optional` lets the install go on when there is no such compiler
NATIVE = Extension(
    "cenote.kernels._native",
    ["cenote/kernels/native.c"],
    extra_compile_args=["-O3", "-fopenmp", "-std=gnu11"],
    optional=True,
)

setup(ext_modules=[NATIVE] if sys.platform == "linux" and platform.machine() == "x86_64" else [])
