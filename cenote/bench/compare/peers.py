"""`cenote bench peers`: list or install the environments of other engines."""

from __future__ import annotations

import argparse
from pathlib import Path

from cenote.bench.compare.engines import ENGINES
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir, install_environment
from cenote.errors import BadRequest
from cenote.utils.progress import print_note


def run_peers(args: argparse.Namespace) -> int:
    root = Path(args.peers_dir) if args.peers_dir else default_peers_dir()
    names = args.names or list(ENVIRONMENTS)
    for name in names:
        if name not in ENVIRONMENTS:
            raise BadRequest(f"unknown peer environment {name!r}; expected one of: {', '.join(ENVIRONMENTS)}")
    if args.action == "install":
        for name in names:
            print_note(f"installing the peer environment {name} in {root / name}; takes minutes")
            install_environment(name, root)
    for name in names:
        python = ENVIRONMENTS[name].find_python(root)
        engines = ", ".join(engine.name for engine in ENGINES.values() if engine.environment == name)
        print(f"{name:<9} {'not installed' if python is None else python}  ({engines})")
    return 0
