"""For processes that another process of Cenote has started: they exit with it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Added to the score of the supervisor, of at most 1000: the kernel frees memory by killing the process with the highest
# one. Engines are replaced without a lost request, front-ends with those of their clients.
ENGINE_OOM_SCORE, FRONT_END_OOM_SCORE = 500, 300
MAX_OOM_SCORE = 1000


def exit_with_parent() -> None:
    """Have the kernel kill this process when its parent exits, however that happens; Linux only."""
    if not sys.platform.startswith("linux"):
        return  # the closed connection to the parent is noticed instead
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it exited before the call
        os._exit(1)


def set_child_subreaper(is_enabled: bool) -> None:
    """Whether processes below this one become its children when their parent exits; Linux only."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, int(is_enabled)):
        raise OSError(ctypes.get_errno(), "the kernel has no child subreapers")


def prefer_as_oom_victim(score: int) -> None:
    """Have the kernel kill this process before its parent, the supervisor, when memory runs out; Linux only."""
    with suppress(OSError, ValueError):
        of_parent = int(Path(f"/proc/{os.getppid()}/oom_score_adj").read_text())
        Path("/proc/self/oom_score_adj").write_text(str(min(MAX_OOM_SCORE, of_parent + score)))
