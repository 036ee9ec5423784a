"""The C code compiles for x86-64 and aarch64 and, where user-mode emulation allows it, computes the same on both.

QEMU emulates neither AMX nor AVX-512: the native kernels are compiled and linked for x86-64, and only the part of them
that finds out what the processor has is run. Their results are tested on a processor that has both.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cenote.inputs import wordpiece
from cenote.kernels import native_library
from tests.inputs.test_wordpiece import encode_with_library, make_texts, make_tokenizer

ROOT = Path(__file__).parents[2]
NATIVE = sorted((ROOT / "cenote/kernels").glob("native_*.c"))
WORD_PIECE = ROOT / "cenote/inputs/wordpiece.c"
DRIVER = Path(__file__).with_name("wordpiece_driver.c")
# as in setup.py
FLAGS = ["-O3", "-std=gnu11"]
MACHINES = {  # Debian's packages
    "x86_64": ("x86_64-linux-gnu-gcc", "qemu-x86_64", "gcc-x86-64-linux-gnu"),
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64", "gcc-aarch64-linux-gnu"),
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


def compiled(machine: str, sources: list[Path], to: Path, *flags: str) -> Path:
    words = [compiler(machine), *FLAGS, *flags, *map(str, sources), "-o", str(to)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return to


def command(machine: str, program: Path) -> list[str]:
    """What runs a program of that machine here."""
    if is_host(machine):
        return [str(program)]
    _, emulator, _ = MACHINES[machine]
    if shutil.which(emulator) is None:
        pytest.skip(f"programs for {machine} do not run here: {emulator} is not installed (Debian: qemu-user)")
    return [emulator, str(program)]


@pytest.fixture(scope="module")
def native_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The native kernels, compiled for x86-64 and not linked yet."""
    told = subprocess.run([compiler("x86_64"), "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if int(told.split(".")[0]) < 11:
        pytest.skip(f"{compiler('x86_64')} is version {told.strip()}: AMX needs 11 or newer")
    folder = tmp_path_factory.mktemp("objects")
    return [compiled("x86_64", [source], folder / f"{source.stem}.o", "-fopenmp", "-fPIC", "-c") for source in NATIVE]


def test_the_native_kernels_compile_for_x86_and_export_what_python_calls(
    native_objects: list[Path], tmp_path: Path
) -> None:
    library = compiled("x86_64", native_objects, tmp_path / "native.so", "-fopenmp", "-shared")
    reader = compiler("x86_64").replace("gcc", "nm")

    symbols = subprocess.run([reader, "-D", str(library)], capture_output=True, text=True, check=True).stdout

    assert set(re.findall(r" T (\w+)", symbols)) >= native_library.SIGNATURES.keys()


def test_the_native_kernels_know_a_processor_without_amx(native_objects: list[Path], tmp_path: Path) -> None:
    if is_host("x86_64"):
        pytest.skip("this processor may have AMX; an emulated one has none")
    main = tmp_path / "main.c"
    main.write_text("int cenote_has_amx(void);\nint main(void) { return 40 + cenote_has_amx(); }\n")
    processor = [each for each in native_objects if each.stem == "native_processor"]
    program = compiled("x86_64", [main, *processor], tmp_path / "native", "-static")

    assert subprocess.run(command("x86_64", program), check=False).returncode == 40


class EmulatedLibrary:
    """The WordPiece code in a process of another machine; called like the library that ctypes loads."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def cenote_wordpiece_new(self, *given: Any) -> int:
        tokens, ends, ids, count, prefix, prefix_length, unknown, most, *added = given
        written, written_ends, num_written, read, read_ends, num_read = added
        numbers = (count, prefix_length, unknown, most, num_written, num_read)
        self._send(b"n", numbers, (tokens, ends, ids, prefix, written, written_ends, read, read_ends))
        return self._number()

    def cenote_wordpiece_page(self, vocabulary: int, page: int, letters: bytes) -> int:
        self._send(b"p", (page,), (letters,))
        return self._number()

    def cenote_wordpiece_encode(
        self, vocabulary: int, data: bytes, lengths: int, count: int, ascii: bool, ids: int, offsets: int, wanted: Any
    ) -> int:
        self._send(b"e", (count, ascii, len(data) + 1), (data, ctypes.string_at(lengths, 8 * count)))
        result = self._number()
        ctypes.memmove(lengths, self._read(8 * count), 8 * count)
        ctypes.memmove(offsets, self._read(8 * count + 8), 8 * count + 8)
        ctypes.memmove(wanted, self._read(wordpiece.NUM_PAGES), wordpiece.NUM_PAGES)
        num_ids = ctypes.c_int64.from_address(offsets + 8 * count).value
        ctypes.memmove(ids, self._read(4 * num_ids), 4 * num_ids)
        return result

    def cenote_wordpiece_free(self, vocabulary: int) -> None:
        """The process frees it at its end."""

    def _send(self, call: bytes, numbers: tuple[int, ...], arrays: tuple[bytes, ...]) -> None:
        assert self.process.stdin is not None
        parts = [call, struct.pack(f"<{len(numbers)}q", *numbers)]
        parts += [part for data in arrays for part in (struct.pack("<q", len(data)), data)]
        self.process.stdin.write(b"".join(parts))
        self.process.stdin.flush()

    def _number(self) -> int:
        value: int = struct.unpack("<q", self._read(8))[0]
        return value

    def _read(self, num_bytes: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(num_bytes)
        assert len(data) == num_bytes, f"the process ended with {self.process.wait()}"
        return data


@pytest.fixture(params=list(MACHINES))
def emulated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmulatedLibrary]:
    # emulated programs find no shared libraries of their machine
    static = [] if is_host(request.param) else ["-static"]
    program = compiled(request.param, [WORD_PIECE, DRIVER], tmp_path / "word_piece", *static)
    words = command(request.param, program)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield EmulatedLibrary(process)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_are_those_of_the_library_on_either_machine(emulated: EmulatedLibrary, lowercase: bool) -> None:
    raw = make_tokenizer(lowercase=lowercase)
    given = make_texts(3, 1500)

    ours = wordpiece.NativeWordPiece(raw, emulated, raw.get_vocab(with_added_tokens=False)).encode(given)  # type: ignore[arg-type]

    theirs = encode_with_library(raw, given)
    read = [row for row in range(len(given)) if row not in set(ours.fallback_indices)]
    assert len(read) > len(given) // 2
    for row in read:
        assert ours.ids[ours.cu_seqlens[row] : ours.cu_seqlens[row + 1]].tolist() == theirs[row], given[row]
    if (here := wordpiece.load_native_wordpiece(raw)) is not None:
        assert here.encode(given).fallback_indices == ours.fallback_indices
