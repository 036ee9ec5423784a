"""Certificates for servers of tests, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CREATE = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """Create a self-signed certificate for this machine and return it and its key."""
    folder.mkdir(exist_ok=True)
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    options = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run([*CREATE.split(), *options], check=True, capture_output=True)
    return cert, key
