"""The sandbox of image decoders: code that an image would run there reaches no file, socket, process or signal.

The code runs in a real decoder, once it decodes an image that carries it; the pixels of the answer are its results.
"""

from __future__ import annotations

import io
import json
import logging
import platform
import re
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
from PIL.PngImagePlugin import PngInfo

from cenote.errors import BadRequest
from cenote.inputs.media import decoder_protocol, sandbox
from cenote.inputs.media.loader import MediaLoader
from cenote.inputs.media.policy import MediaPolicy
from tests.inputs.media.conftest import make_image_source

SIZE = (512, 128)  # pixels, one for each character of the results
# Python imports this module before it runs the decoder. It stands for a defect of Pillow that lets an image run code.
DEFECT = """
import ctypes, json, mmap, os, resource, signal, socket, sys
import PIL.Image
from PIL.PngImagePlugin import PngImageFile

libc = ctypes.CDLL(None, use_errno=True)
CLOSE = 3 if os.uname().machine == "x86_64" else 57
load = PngImageFile.load

def run_code(self):
    result = load(self)
    if "code" in self.info:
        results = {}
        try:
            exec(self.info["code"], globals() | {"results": results})
        except Exception as error:
            results["error"] = repr(error)
        content = json.dumps(results).ljust(self.size[0] * self.size[1])
        self.im = PIL.Image.frombytes("L", self.size, content.encode()).im
    return result

def syscall(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return result if result >= 0 else -ctypes.get_errno()

PngImageFile.load = run_code
"""
ATTEMPTS = """
attempts = {
    "read a file": lambda: open("/etc/passwd").read(),
    "read a file in the place of another": lambda: (syscall(CLOSE, 1), open("/etc/passwd").read()),
    "read the environment of the server": lambda: open(f"/proc/{os.getppid()}/environ", "rb").read(),
    "write a file": lambda: os.open("/dev/shm/written", os.O_CREAT | os.O_WRONLY),
    "truncate a file": lambda: os.truncate(TARGET, 0),
    "remove a file": lambda: os.unlink(TARGET),
    "list a folder": lambda: os.listdir("/"),
    "stat a file": lambda: os.stat("/etc/passwd"),
    "make a file in memory": lambda: os.memfd_create("code"),
    "read a limit of the server": lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU),
    "open a socket": lambda: socket.socket(),
    "open a Unix domain socket": lambda: socket.socketpair(),
    "open a pipe": lambda: os.pipe(),
    "copy a descriptor": lambda: os.dup(0),
    "fork": lambda: os.fork() or os._exit(0),
    "run a program": lambda: os.execv("/bin/true", ["true"]),
    "spawn a program": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "see the server": lambda: os.kill(os.getppid(), 0),
    "stop the server": lambda: os.kill(os.getppid(), signal.SIGWINCH),
    "signal itself": lambda: os.kill(os.getpid(), signal.SIGWINCH),
    "map memory with code": lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
    "run at a higher priority": lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
    "raise the limit of files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "raise the limit of processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (64, 64)),
}
for name in [name for name in attempts if name not in SKIPPED]:
    try:
        results[name] = repr(attempts[name]())
    except OSError as error:
        results[name] = error.errno
    except ValueError:  # that setrlimit raises for EPERM
        results[name] = 1
"""
WITHOUT_FILTER = "from cenote.inputs.media import sandbox\nsandbox.SYSCALLS = {}\n"
NEW_PROGRAMS = ("fork", "run a program", "spawn a program")
NOT_PERMITTED, NO_ACCESS, NO_DESCRIPTOR = 1, 13, 24  # errno

needs_seccomp = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in sandbox.SYSCALLS, reason="no filter for this system"
)


@pytest.fixture
def defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let decoders run the code of an image; returns the module that makes them do so."""
    module = tmp_path / "sitecustomize.py"
    module.write_text(DEFECT)
    monkeypatch.syspath_prepend(str(tmp_path))
    return module


@pytest.fixture
def loader(defect: Path) -> Iterator[MediaLoader]:
    loader = MediaLoader(MediaPolicy())
    yield loader
    loader.close()


def run_attempts(loader: MediaLoader, target: Path, skipped: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what attempts to leave the sandbox gave: the number of an error, or the result of one that succeeded."""
    target.write_text("kept")
    return run_in_decoder(loader, f"TARGET, SKIPPED = {str(target)!r}, {skipped!r}\n{ATTEMPTS}")


def run_in_decoder(loader: MediaLoader, code: str) -> dict[str, Any]:
    """Decode an image with this code, and return what the code left in `results`."""
    text, file = PngInfo(), io.BytesIO()
    text.add_text("code", textwrap.dedent(code))
    PIL.Image.new("L", SIZE).save(file, "PNG", pnginfo=text)
    answer = loader.load(make_image_source(file.getvalue()))
    results: dict[str, Any] = json.loads(answer.getchannel(0).tobytes())
    return results


def simulate(program: list[sandbox.Instruction], arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Run a filter as the kernel does."""
    data = {sandbox.OFFSET_NUMBER: number, sandbox.OFFSET_ARCH: arch}
    data |= {sandbox.OFFSET_ARGUMENTS + 8 * index: value for index, value in enumerate((*arguments, *[0] * 6)[:6])}
    position = value = 0
    while True:
        code, if_true, if_false, operand = program[position]
        position += 1
        if code == sandbox.RETURN:
            return operand
        if code == sandbox.LOAD:
            value = data[operand]
        else:
            holds = value == operand if code == sandbox.JUMP_IF_EQUAL else bool(value & operand)
            position += if_true if holds else if_false


@needs_seccomp
def test_code_in_a_decoder_reaches_no_file_socket_process_or_signal(loader: MediaLoader, tmp_path: Path) -> None:
    results = run_attempts(loader, tmp_path / "target")

    assert len(results) == 24
    assert {name: result for name, result in results.items() if result != NOT_PERMITTED} == {}
    assert (tmp_path / "target").read_text() == "kept"


@needs_seccomp
def test_every_other_system_call_is_refused(loader: MediaLoader) -> None:
    numbers = sandbox.SYSCALLS[platform.machine()]
    skipped = {numbers[name] for name in (*sandbox.ALLOWED, *sandbox.ALLOWED_WITHOUT_EXEC)}
    skipped |= {335, 336}  # of probes, on x86-64: no filter sees them, and they end a process that makes them

    results = run_in_decoder(
        loader,
        f"""
        numbers = [number for number in range(600) if number not in {skipped}]
        numbers += [0x40000000 + number for number in range(600)]  # x32, on x86-64
        results["others"] = sorted({{syscall(number, -1, -1, -1, -1, -1, -1) for number in numbers}})
        """,
    )

    assert results == {"others": [-NOT_PERMITTED]}


@needs_seccomp
@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code of x86-64")
def test_a_call_of_another_architecture_ends_the_decoder(loader: MediaLoader, defect: Path) -> None:
    # mov eax, 20; int 0x80; ret: getpid() of 32-bit programs
    code = "page = mmap.mmap(-1, 4096, prot=7); page.write(bytes.fromhex('b814000000cd80c3'))\n"
    code += "call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
    defect.write_text(DEFECT + code)

    with pytest.raises(BadRequest, match="exceeded the memory or time limit for decoding one image"):
        run_in_decoder(loader, "results['pid'] = call()")

    assert run_in_decoder(loader, "results['alive'] = True") == {"alive": True}


@needs_seccomp
def test_the_log_says_once_which_layers_are_active(loader: MediaLoader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cenote"):
        run_in_decoder(loader, "")
        run_in_decoder(loader, "")

    (line,) = caplog.messages
    assert line.startswith("the sandbox of image decoders has limits, no-new-privs, seccomp")
    assert line.endswith("landlock")  # or lacks it


def test_a_decoder_has_three_descriptors_and_no_variable_of_the_server(
    loader: MediaLoader, defect: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "abc")
    defect.write_text(DEFECT + WITHOUT_FILTER)

    results = run_in_decoder(
        loader,
        """
        results["variables"] = list(os.environ)
        results["descriptors"] = []
        for descriptor in range(100):
            try:
                os.fstat(descriptor)
                results["descriptors"].append(descriptor)
            except OSError:
                pass
        """,
    )

    assert results["descriptors"] == [0, 1, 2]
    assert "PYTHONPATH" in results["variables"] and "SECRET_KEY" not in results["variables"]


def test_without_seccomp_limits_refuse_files_and_sockets(
    loader: MediaLoader, defect: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    defect.write_text(DEFECT + WITHOUT_FILTER)

    results = run_attempts(loader, tmp_path / "target", skipped=NEW_PROGRAMS)

    refused = {name for name, result in results.items() if result == NO_DESCRIPTOR}
    assert refused >= {
        *("read a file", "read a file in the place of another", "read the environment of the server", "write a file"),
        *("list a folder", "open a socket", "open a Unix domain socket", "open a pipe"),
    }
    assert "this system lacks seccomp, landlock" in caplog.text
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@needs_seccomp
def test_without_seccomp_landlock_refuses_paths_and_signals(loader: MediaLoader, defect: Path, tmp_path: Path) -> None:
    defect.write_text(DEFECT + "from cenote.inputs.media import sandbox\nsandbox.SECCOMP_SET_MODE_FILTER = 99\n")
    version = run_in_decoder(loader, "results['version'] = syscall(444, 0, 0, 1)")["version"]
    if version < 6:
        pytest.skip(f"version {version} of Landlock knows no signals")

    results = run_attempts(loader, tmp_path / "target", skipped=NEW_PROGRAMS)

    assert results["truncate a file"] == results["remove a file"] == NO_ACCESS
    assert results["see the server"] == results["stop the server"] == NOT_PERMITTED
    assert (tmp_path / "target").read_text() == "kept"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_system_calls_have_the_numbers_of_the_kernel(machine: str) -> None:
    folder = Path(f"/usr/{machine}-linux-gnu/include")  # of the package linux-libc-dev-arm64-cross
    is_own = machine == platform.machine()
    if shutil.which("gcc") is None or not (is_own or (folder / "asm/unistd.h").exists()):
        pytest.skip(f"gcc or the kernel's headers for {machine} are not installed")
    headers = [] if is_own else ["-nostdinc", "-undef", "-isystem", str(folder)]
    names = list(sandbox.SYSCALLS[machine])
    source = "#include <asm/unistd.h>\n" + "".join(f"@ __NR_{name}\n" for name in names)
    command = ["gcc", "-E", "-P", *headers, "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=True)

    assert [int(number) for number in re.findall(r"@\s+(\w+)", done.stdout)] == list(sandbox.SYSCALLS[machine].values())


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_filter_allows_exactly_the_calls_of_its_list(machine: str) -> None:
    program, arch, numbers = sandbox.make_filter(machine), sandbox.AUDIT_ARCH[machine], sandbox.SYSCALLS[machine]
    executable = (0, 4096, 1 | sandbox.PROT_EXEC)

    allowed = {number for number in range(600) if simulate(program, arch, number) == sandbox.ALLOW}

    assert allowed == {numbers[name] for name in (*sandbox.ALLOWED, *sandbox.ALLOWED_WITHOUT_EXEC, "prlimit64")}
    assert simulate(program, arch, numbers["mmap"], (0, 4096, 3)) == sandbox.ALLOW
    for name in sandbox.ALLOWED_WITHOUT_EXEC:
        assert simulate(program, arch, numbers[name], executable) == sandbox.DENY
    assert simulate(program, arch, numbers["prlimit64"], (1, resource.RLIMIT_CPU)) == sandbox.DENY
    assert simulate(program, arch, numbers["prlimit64"], (0, resource.RLIMIT_NOFILE)) == sandbox.DENY
    others = [other for name, other in sandbox.AUDIT_ARCH.items() if name != machine]
    assert simulate(program, others[0], numbers["read"]) == sandbox.KILL_PROCESS


def test_the_documentation_says_where_each_layer_holds() -> None:
    page = (Path(__file__).parents[3] / "docs/security.md").read_text()

    assert re.findall(r"^\| `([\w-]+)` \| Linux", page, re.MULTILINE) == list(decoder_protocol.LAYERS)
