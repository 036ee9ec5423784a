"""A process that is forked for the parent of the process that forks it."""

from __future__ import annotations

import subprocess
import sys

# the parent forks a launcher, which forks a grandchild for the parent
SCRIPT = """
import os, sys, time
from cenote.utils.child_process import set_child_subreaper
from cenote.utils.fork import PROCESS_ID, fork_grandchild

def run():
    os.write(1, f"parent {os.getppid()}".encode())
    if sys.argv[2] == "raise":
        raise ValueError
    os._exit(7)

set_child_subreaper(sys.argv[1] == "subreaper")
reader, writer = os.pipe()
launcher = os.fork()
if not launcher:
    os.write(writer, PROCESS_ID.pack(fork_grandchild(run)))
    time.sleep(60)
(pid,) = PROCESS_ID.unpack(os.read(reader, PROCESS_ID.size))
try:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
except ChildProcessError:
    code = "not a child"
os.kill(launcher, 9)
print(f" of {os.getpid()}: {code}")
"""


def run_script(*arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    return process.stdout.strip()


def test_the_process_is_a_child_of_the_parent_and_its_exit_code_is_seen_there() -> None:
    shown, _, code = run_script("subreaper", "exit").rpartition(": ")
    _, parent, _, pid = shown.split()
    assert (parent, code) == (pid, "7")


def test_an_exception_is_printed_and_ends_the_process() -> None:
    output = run_script("subreaper", "raise")
    assert output.endswith(": 1") and "ValueError" in output


def test_nothing_runs_in_a_process_that_the_parent_would_not_see() -> None:
    assert run_script("no subreaper", "exit").startswith("of ")
