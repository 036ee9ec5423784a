"""The C code compiles for x86-64 and aarch64 and, with QEMU user-mode emulation, gives the same results on both.

QEMU emulates neither AMX nor AVX-512: the kernels for AMX are compiled and linked for x86-64, and only their CPU
detection is run. Their results are tested on a processor that has both, and with emulated tiles on one with AVX-512.
"""

from __future__ import annotations

import ctypes
import re
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tokenizers
from tokenizers import normalizers, pre_tokenizers

from cenote.inputs import wordpiece
from cenote.inputs.native_encoding import NUM_PAGES
from cenote.inputs.subword import library as subword_library
from cenote.inputs.subword.encoder import NativeSubword
from cenote.inputs.subword.vocabulary import read_vocabulary
from cenote.kernels import native_library
from cenote.kernels.cpu import library as level_library
from cenote.kernels.cpu_features import ISA_LEVELS
from tests.inputs.subword_texts import make_texts as make_subword_texts
from tests.inputs.subword_tokenizers import make_byte_bpe, make_char_bpe, make_unigram
from tests.inputs.wordpiece import encode_with_library, make_texts, make_tokenizer
from tests.kernels.cross_compile import (
    ARM_LEVELS,
    KERNELS,
    MACHINES,
    NATIVE,
    PRODUCT_DRIVER,
    ROOT,
    compile_c,
    compiler,
    emulate_arm,
    is_host,
    run_command,
)

WORD_PIECE = ROOT / "cenote/inputs/wordpiece.c"
SUBWORD = sorted((ROOT / "cenote/inputs/subword").glob("*.c"))
DRIVER = Path(__file__).with_name("wordpiece_driver.c")
SUBWORD_DRIVER = Path(__file__).with_name("subword_driver.c")


FUNCTIONS = {*native_library.SIGNATURES, *level_library.SIGNATURES}
STRUCTURES = {
    level_library: [
        "Norm",
        "PackedLinear",
        "InputRecord",
        "LevelLayer",
        "LevelEmbedding",
        "LevelEncoder",
        "LevelInput",
    ],
    subword_library: ["SubwordSpec"],
}


@pytest.fixture(scope="module")
def native_objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Compile the native kernels for x86-64 without linking them."""
    version = subprocess.run([compiler("x86_64"), "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if int(version.split(".")[0]) < 11:
        pytest.skip(f"{compiler('x86_64')} is version {version.strip()}: AMX needs 11 or newer")
    folder = tmp_path_factory.mktemp("objects")
    return [
        compile_c("x86_64", [source], folder / f"{source.stem}.o", "-fopenmp", "-fPIC", "-Wall", "-Werror", "-c")
        for source in NATIVE
    ]


def test_the_native_kernels_link_for_x86_and_export_the_functions_that_python_calls(
    native_objects: list[Path], tmp_path: Path
) -> None:
    library = compile_c("x86_64", native_objects, tmp_path / "native.so", "-fopenmp", "-shared")

    assert defined_symbols(library, "-D") >= FUNCTIONS


def test_every_function_that_python_calls_is_defined_in_the_native_objects(native_objects: list[Path]) -> None:
    assert set().union(*map(defined_symbols, native_objects)) >= FUNCTIONS


# a ctypes structure with other fields than the C struct corrupts the arguments of the native code without an error
@pytest.mark.parametrize(
    ("library", "name"), [(library, name) for library, names in STRUCTURES.items() for name in names]
)
def test_a_ctypes_structure_has_the_fields_of_the_c_struct(library: ModuleType, name: str) -> None:
    structure = getattr(library, name)

    assert [(field, c_kind(type_)) for field, type_ in structure._fields_] == struct_fields(library, name)


@pytest.mark.parametrize("library", STRUCTURES)
def test_every_ctypes_structure_is_compared_with_its_c_struct(library: ModuleType) -> None:
    mirrors = {name for name, value in vars(library).items() if isinstance(value, type(ctypes.Structure))}

    assert mirrors == set(STRUCTURES[library])


def test_activations_are_numbered_as_in_the_c_code() -> None:
    (names,) = re.findall(r"enum \{ (IDENTITY, [\w, ]+) \}", (KERNELS / "cpu/level.h").read_text())

    assert names.lower().split(", ") == [name or "identity" for name in level_library.ACTIVATION_CODES]


def test_formats_are_numbered_as_in_the_c_code() -> None:
    (names,) = re.findall(r"enum \{ (FLOAT32, [\w, ]+), NUM_FORMATS \}", (KERNELS / "cpu/level.h").read_text())

    assert names.lower().split(", ") == list(level_library.FORMATS)


def defined_symbols(binary: Path, *flags: str) -> set[str]:
    command = [compiler("x86_64").replace("gcc", "nm"), *flags, str(binary)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" T (\w+)", output))


def struct_fields(library: ModuleType, name: str) -> list[tuple[str, str]]:
    """Return the fields of a struct in the C sources as (name, type), with "pointer" for all pointer types."""
    folder = Path(library.__file__ or "").parent
    sources = "".join(path.read_text() for path in sorted(folder.glob("*.[ch]")))
    sources = re.sub(r"/\*.*?\*/", "", sources, flags=re.DOTALL)
    (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} {name};", sources)
    fields: list[tuple[str, str]] = []
    for declaration in filter(None, map(str.strip, body.split(";"))):
        type_, names = re.fullmatch(r"(?:const )?(\w+) (.+)", declaration, flags=re.DOTALL).groups()  # type: ignore[union-attr]
        for declarator in map(str.strip, names.split(",")):
            fields.append((declarator.lstrip("*"), "pointer" if declarator.startswith("*") else type_))
    return fields


def c_kind(type_: Any) -> str:
    scalars = {
        ctypes.c_void_p: "pointer",
        ctypes.c_int64: "int64_t",
        ctypes.c_int32: "int32_t",
        ctypes.c_float: "float",
        ctypes.c_double: "double",
    }
    return scalars.get(type_) or str(type_.__name__)


def test_the_native_kernels_detect_a_processor_without_amx(native_objects: list[Path], tmp_path: Path) -> None:
    if is_host("x86_64"):
        pytest.skip("this processor may have AMX; an emulated one has none")
    main = tmp_path / "main.c"
    main.write_text("int cenote_has_amx(void);\nint main(void) { return 40 + cenote_has_amx(); }\n")
    processor = [path for path in native_objects if path.stem == "native_processor"]
    program = compile_c("x86_64", [main, *processor], tmp_path / "native", "-static")

    assert subprocess.run(run_command("x86_64", program), check=False).returncode == 40


@pytest.fixture(scope="module")
def product_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = [KERNELS / "cpu/levels.c", *sorted((KERNELS / "cpu").glob("arm_*.c")), PRODUCT_DRIVER]
    target = tmp_path_factory.mktemp("products") / "products"
    return compile_c("aarch64", sources, target, "-static", "-Wall", "-Werror")


def run_products(program: Path, level: str, cpu: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(emulate_arm(program, level, cpu), capture_output=True, text=True, check=False)


def test_every_aarch64_level_is_emulated() -> None:
    assert ["baseline", *ARM_LEVELS] == list(ISA_LEVELS["arm"])


@pytest.mark.parametrize("level", ARM_LEVELS)
def test_the_products_of_every_format_equal_plain_sums_on_an_emulated_cpu(product_driver: Path, level: str) -> None:
    done = run_products(product_driver, level, "max")

    assert done.returncode == 0, done.stdout
    assert done.stdout.split() == ARM_LEVELS[level]


@pytest.mark.parametrize("level", list(ARM_LEVELS)[1:])
def test_a_level_that_the_cpu_lacks_is_not_found(product_driver: Path, level: str) -> None:
    assert run_products(product_driver, level, "cortex-a72").returncode == 2


def test_an_older_compiler_leaves_out_the_newest_arm_levels(tmp_path: Path) -> None:
    sources = [KERNELS / "cpu/levels.c", *sorted((KERNELS / "cpu").glob("arm_*.c")), PRODUCT_DRIVER]
    program = compile_c("aarch64", sources, tmp_path / "products", "-static", "-O1", "-DCOMPILER_VERSION=9", "-Werror")

    statuses = {level: run_products(program, level, "max").returncode for level in ("dotprod", "i8mm", "bf16")}
    assert statuses == {"dotprod": 0, "i8mm": 2, "bf16": 2}


def test_an_older_compiler_leaves_out_amx_and_links_the_other_x86_levels(tmp_path: Path) -> None:
    flags = ("-fopenmp", "-fPIC", "-shared", "-O1", "-DCOMPILER_VERSION=9", "-Wall", "-Werror")
    library = compile_c("x86_64", NATIVE, tmp_path / "native.so", *flags)

    functions = defined_symbols(library, "-D")
    assert functions >= set(level_library.SIGNATURES)
    assert functions & set(native_library.SIGNATURES) == {"cenote_has_amx"}
    command = [compiler("x86_64").replace("gcc", "nm"), "-D", "--undefined-only", str(library)]
    assert "cenote_" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


class EmulatedLibrary:
    """The WordPiece code in an emulated process, with the functions of the library that ctypes loads."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def cenote_wordpiece_new(self, *args: Any) -> int:
        tokens, ends, ids, count, prefix, prefix_length, unknown, max_chars, *added = args
        raw, raw_ends, num_raw, normalized, normalized_ends, num_normalized = added
        integers = (count, prefix_length, unknown, max_chars, num_raw, num_normalized)
        self._send(b"n", integers, (tokens, ends, ids, prefix, raw, raw_ends, normalized, normalized_ends))
        return self._read_integer()

    def cenote_wordpiece_page(self, vocabulary: int, page: int, chars: bytes) -> int:
        self._send(b"p", (page,), (chars,))
        return self._read_integer()

    def cenote_wordpiece_encode(
        self,
        vocabulary: int,
        data: bytes,
        lengths: int,
        count: int,
        ascii: bool,
        ids: int,
        offsets: int,
        missing_pages: Any,
    ) -> int:
        integers = (count, ascii, False, len(data) + 1)
        return self._encode(integers, data, lengths, ids, offsets, missing_pages)

    def _encode(
        self, integers: tuple[int, ...], data: bytes, lengths: int, ids: int, offsets: int, missing_pages: Any
    ) -> int:
        count = integers[0]
        self._send(b"e", integers, (data, ctypes.string_at(lengths, 8 * count)))
        result = self._read_integer()
        ctypes.memmove(lengths, self._read(8 * count), 8 * count)
        ctypes.memmove(offsets, self._read(8 * count + 8), 8 * count + 8)
        pages = self._read(NUM_PAGES)
        ctypes.memmove(missing_pages, pages, min(len(pages), len(missing_pages)))
        num_ids = ctypes.c_int64.from_address(offsets + 8 * count).value
        ctypes.memmove(ids, self._read(4 * num_ids), 4 * num_ids)
        return result

    def cenote_wordpiece_free(self, vocabulary: int) -> None:
        """Do nothing: the process frees it when it exits."""

    def _send(self, call: bytes, integers: tuple[int, ...], arrays: tuple[bytes, ...]) -> None:
        assert self.process.stdin is not None
        parts = [call, struct.pack(f"<{len(integers)}q", *integers)]
        parts += [part for data in arrays for part in (struct.pack("<q", len(data)), data)]
        self.process.stdin.write(b"".join(parts))
        self.process.stdin.flush()

    def _read_integer(self) -> int:
        value: int = struct.unpack("<q", self._read(8))[0]
        return value

    def _read(self, num_bytes: int) -> bytes:
        assert self.process.stdout is not None
        data = self.process.stdout.read(num_bytes)
        assert len(data) == num_bytes, f"the process ended with {self.process.wait()}"
        return data


class EmulatedSubwordLibrary(EmulatedLibrary):
    """The BPE and Unigram code in an emulated process."""

    arrays: Mapping[str, bytes] = {}

    def cenote_subword_new(self, spec: Any) -> int:
        names = [name for name, type_ in subword_library.SubwordSpec._fields_ if type_ is ctypes.c_void_p]
        self._send(b"n", (), (bytes(spec.contents), *(self.arrays.get(name, b"") for name in names)))
        return self._read_integer()

    def cenote_subword_page(self, encoder: int, page: int, infos: bytes) -> int:
        return self.cenote_wordpiece_page(encoder, page, infos)

    def cenote_subword_encode(
        self,
        encoder: int,
        data: bytes,
        lengths: int,
        count: int,
        ascii: bool,
        is_normalized: bool,
        ids: int,
        max_ids: int,
        offsets: int,
        missing_pages: Any,
    ) -> int:
        integers = (count, ascii, is_normalized, max_ids)
        return self._encode(integers, data, lengths, ids, offsets, missing_pages)

    def cenote_subword_free(self, encoder: int) -> None:
        """Do nothing: the process frees it when it exits."""


@contextmanager
def start_program(machine: str, sources: list[Path], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    # shared libraries of the emulated machine are not installed
    static = [] if is_host(machine) else ["-static"]
    program = compile_c(machine, sources, folder / sources[-1].stem, "-Wall", "-Wextra", "-Werror", *static)
    with subprocess.Popen(run_command(machine, program), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process


@pytest.fixture(params=list(MACHINES))
def emulated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmulatedLibrary]:
    with start_program(request.param, [WORD_PIECE, DRIVER], tmp_path) as process:
        yield EmulatedLibrary(process)


@pytest.fixture(params=list(MACHINES))
def emulated_subword(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmulatedSubwordLibrary]:
    with start_program(request.param, [*SUBWORD, SUBWORD_DRIVER], tmp_path) as process:
        yield EmulatedSubwordLibrary(process)


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_equal_those_of_tokenizers_on_either_machine(emulated: EmulatedLibrary, lowercase: bool) -> None:
    raw = make_tokenizer(lowercase=lowercase)
    texts = make_texts(3, 1500)

    ours = wordpiece.NativeWordPiece(raw, emulated, raw.get_vocab(with_added_tokens=False)).encode(texts)  # type: ignore[arg-type]

    theirs = encode_with_library(raw, texts)
    encoded = [row for row in range(len(texts)) if row not in set(ours.fallback_indices)]
    assert len(encoded) > len(texts) // 2
    for row in encoded:
        assert ours.ids[ours.cu_seqlens[row] : ours.cu_seqlens[row + 1]].tolist() == theirs[row], texts[row]
    if (native := wordpiece.load_native_wordpiece(raw)) is not None:
        assert native.encode(texts).fallback_indices == ours.fallback_indices


def make_nfc_bpe() -> tokenizers.Tokenizer:
    return make_byte_bpe(pre_tokenizers.ByteLevel(add_prefix_space=True), normalizers.NFC())


def make_gemma_bpe() -> tokenizers.Tokenizer:
    return make_char_bpe(normalizer=normalizers.Replace(" ", "\u2581"), pre_tokenizer=None)


@pytest.mark.parametrize("make_raw", [make_nfc_bpe, make_gemma_bpe, make_unigram])
def test_bpe_and_unigram_ids_equal_those_of_tokenizers_on_either_machine(
    emulated_subword: EmulatedSubwordLibrary, make_raw: Callable[[], tokenizers.Tokenizer]
) -> None:
    raw, texts = make_raw(), make_subword_texts(8, 400)
    vocabulary = read_vocabulary(raw)
    emulated_subword.arrays = vocabulary.arrays

    ours = NativeSubword(raw, emulated_subword, vocabulary).encode(texts)  # type: ignore[arg-type]

    theirs = encode_with_library(raw, texts)
    encoded = [row for row in range(len(texts)) if row not in set(ours.fallback_indices)]
    assert len(encoded) > len(texts) // 2
    for row in encoded:
        assert ours.ids[ours.cu_seqlens[row] : ours.cu_seqlens[row + 1]].tolist() == theirs[row], texts[row]
