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
OOM_SCORE = 500  # of 1000: the kernel frees memory by killing the process with the highest score


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


def prefer_as_oom_victim() -> None:
    """Make the kernel kill this process before others of the same user when memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
