"""Copy a model folder and export it to ONNX and OpenVINO with Sentence Transformers and Optimum."""

from __future__ import annotations

import os
import shutil
import sys


def main(model: str, task: str, folder: str) -> None:
    shutil.copytree(model, folder, dirs_exist_ok=True)
    from sentence_transformers import CrossEncoder, SentenceTransformer

    kind = {"embed": SentenceTransformer, "score": CrossEncoder}[task]
    for backend in ("onnx", "openvino"):
        exported = kind(folder, device="cpu", backend=backend, model_kwargs={"export": True})
        exported.save_pretrained(folder)
        print(backend, sorted(os.listdir(os.path.join(folder, backend))))


if __name__ == "__main__":
    main(*sys.argv[1:])
