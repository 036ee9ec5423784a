"""Copy the JavaScript libraries of the pages, and of their tests, from npm packages into the repository.

    python tools/vendor_ui.py            # download, compare with the hashes in vendored.json, write
    python tools/vendor_ui.py --update   # after a change of versions in vendored.json: write the new hashes

`vendored.json` pins the versions and the SHA-256 of every file as it is in its package. Files whose name here ends in
.gz are stored compressed. tests/ui/test_vendored.py compares the files in the repository with the same hashes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MANIFEST = Path(__file__).with_name("vendored.json")


def download(name: str, version: str, folder: Path) -> dict[str, bytes]:
    """Return the files of a package by their path in it."""
    command = ["npm", "pack", f"{name}@{version}", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (archive,) = folder.glob("*.tgz")
    contents = {}
    with tarfile.open(archive) as package:
        for member in package.getmembers():
            if (file := package.extractfile(member)) is not None:
                contents[member.name.partition("/")[2]] = file.read()
    return contents


def read_vendored(path: Path) -> bytes:
    """Return a vendored file as it is in its package."""
    stored = path.read_bytes()
    return gzip.decompress(stored) if path.suffix == ".gz" else stored


def write_vendored(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def find_changed(manifest: dict[str, Any]) -> list[str]:
    """Return the files in the repository that are missing or differ from their hash."""
    return [
        name
        for name, expected in manifest["sha256"].items()
        if not (ROOT / name).is_file() or hashlib.sha256(read_vendored(ROOT / name)).hexdigest() != expected
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write the hashes of what is downloaded")
    is_update = parser.parse_args().update
    manifest = json.loads(MANIFEST.read_text())
    contents: dict[str, bytes] = {}
    for package in manifest["packages"]:
        with tempfile.TemporaryDirectory() as folder:
            found = download(package["name"], package["version"], Path(folder))
        contents |= {target: found[source] for source, target in package["files"].items()}
    hashes = {target: hashlib.sha256(content).hexdigest() for target, content in contents.items()}
    if is_update:
        MANIFEST.write_text(json.dumps(manifest | {"sha256": hashes}, indent=2) + "\n")
    elif wrong := [target for target in hashes if hashes[target] != manifest["sha256"].get(target)]:
        print(f"not what vendored.json says, nothing is written: {', '.join(wrong)}", file=sys.stderr)
        return 1
    for target, content in contents.items():
        write_vendored(ROOT / target, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
