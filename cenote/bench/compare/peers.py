"""`cenote bench peers`: the environments of other engines, listed and installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from cenote.bench.compare.engines import ENGINES
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir, install_environment
from cenote.errors import BadRequest
from cenote.utils.progress import print_note


def run_peers(given: argparse.Namespace) -> int:
    root = Path(given.peers_dir) if given.peers_dir else default_peers_dir()
    names = given.names or list(ENVIRONMENTS)
    for name in names:
        if name not in ENVIRONMENTS:
            raise BadRequest(f"no peer environment is called {name!r}; there are: {', '.join(ENVIRONMENTS)}")
    if given.action == "install":
        for name in names:
            print_note(f"installing the peer environment {name} in {root / name}; this takes minutes")
            install_environment(name, root)
    for name in names:
        python = ENVIRONMENTS[name].find_python(root)
        runs = ", ".join(engine.name for engine in ENGINES.values() if engine.environment == name)
        print(f"{name:<9} {'not installed' if python is None else python}  ({runs})")
    return 0
