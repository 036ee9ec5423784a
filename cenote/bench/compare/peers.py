"""`cenote bench peers`: the environments of other engines, listed and installed."""

from __future__ import annotations

import argparse
from pathlib import Path

from cenote.bench.compare.engines import ENGINES
from cenote.bench.compare.environments import ENVIRONMENTS, default_root, install
from cenote.bench.compare.progress import note
from cenote.errors import BadRequest


def peers(given: argparse.Namespace) -> int:
    root = Path(given.peers_dir) if given.peers_dir else default_root()
    names = given.names or list(ENVIRONMENTS)
    for name in names:
        if name not in ENVIRONMENTS:
            raise BadRequest(f"no peer environment is called {name!r}; there are: {', '.join(ENVIRONMENTS)}")
    if given.action == "install":
        for name in names:
            note(f"installing the peer environment {name} in {root / name}; this takes minutes")
            install(name, root)
    for name in names:
        python = ENVIRONMENTS[name].python(root)
        runs = ", ".join(engine.name for engine in ENGINES.values() if engine.environment == name)
        print(f"{name:<9} {'not installed' if python is None else python}  ({runs})")
    return 0
