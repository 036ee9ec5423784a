"""Read the instructions of a Dockerfile that decide how the server runs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.chart import DEPLOY

DOCKERFILES = sorted((DEPLOY / "docker").glob("Dockerfile.*"))


@dataclass
class ImageSettings:
    """Settings of the last stage."""

    environment: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    user: str = "root"
    volumes: list[str] = field(default_factory=list)
    stop_signal: str = "SIGTERM"


def read_dockerfile(path: Path) -> ImageSettings:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    image = ImageSettings()
    for instruction in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = instruction.strip().partition(" ")
        if word == "FROM":
            image = ImageSettings()
        elif word == "ENV":
            image.environment |= dict(re.findall(r"(\w+)=(\S+)", rest))
        elif word == "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        elif word == "HEALTHCHECK":
            image.healthcheck = json.loads(rest[rest.index("[") :])
        elif word == "USER":
            image.user = rest
        elif word == "VOLUME":
            image.volumes = json.loads(rest)
        elif word == "STOPSIGNAL":
            image.stop_signal = rest
    return image
