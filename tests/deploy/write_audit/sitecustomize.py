"""Imported by every Python process of a server under test: writes outside of WRITABLE are noted in WRITE_LOG."""

import os
import sys

WRITABLE = tuple(os.environ["WRITABLE"].split(os.pathsep))
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def audit(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        is_writing = isinstance(flags, int) and bool(flags & WRITING)
    else:
        path, is_writing = (arguments[0] if arguments else None), event in ("os.mkdir", "os.rename")
    if is_writing and isinstance(path, str) and os.path.isabs(path) and not path.startswith(WRITABLE):
        log = os.open(os.environ["WRITE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(log, f"{event} {path}\n".encode())
        os.close(log)


sys.addaudithook(audit)
