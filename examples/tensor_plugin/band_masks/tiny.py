"""Write a checkpoint with random weights: python -m band_masks.tiny FOLDER."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from band_masks.model import make_model

CONFIG = {
    "architectures": ["BandMixerForSegmentation"],
    "num_bands": 6,
    "num_classes": 2,
    "tile_size": 64,
    "patch_size": 8,
    "hidden_size": 32,
    "num_layers": 2,
    "band_mean": [60.0, 70.0, 65.0, 110.0, 100.0, 80.0],
    "band_deviation": [25.0, 25.0, 30.0, 45.0, 45.0, 40.0],
}


def write_checkpoint(folder: Path, seed: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    save_file(make_model(CONFIG).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m band_masks.tiny", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write the checkpoint")
    write_checkpoint(parser.parse_args().folder)
