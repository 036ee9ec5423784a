"""Image processor of jina-clip: the transforms of torchvision, with option names of their own in the files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cenote.errors import LoadError
from cenote.inputs.images.fixed_size import FixedSizeImageProcessor, parse_size
from cenote.inputs.images.transforms import BICUBIC, BILINEAR

INTERPOLATIONS = {"bicubic": BICUBIC, "bilinear": BILINEAR, "random": BICUBIC}
EXPECTED = {"resize_mode": ("shortest", "squash"), "interpolation": tuple(INTERPOLATIONS)}


class JinaCLIPImageProcessor(FixedSizeImageProcessor):
    ROUNDS_CROP = True

    def normalize_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert mean, std, interpolation, resize_mode and a size that is one number."""
        defaults = {"resize_mode": "shortest", "interpolation": "bicubic", "size": self.spec.options["image_size"]}
        config = {**defaults, **{name: value for name, value in config.items() if value is not None}}
        for name, known in EXPECTED.items():
            if config[name] not in known:
                raise LoadError(
                    f"preprocessor_config.json: {name}={config[name]!r} is not supported; expected {' or '.join(known)}"
                )
        height, width = config["size"] if isinstance(config["size"], list) else parse_size(config["size"])
        exact = {"height": height, "width": width}
        squashes = config["resize_mode"] == "squash"
        return {
            "size": exact if squashes or height != width else {"shortest_edge": height},
            "resample": INTERPOLATIONS[config["interpolation"]],
            "do_center_crop": not squashes,
            "crop_size": exact,
            **{f"image_{name}": config[name] for name in ("mean", "std") if name in config},
        }
