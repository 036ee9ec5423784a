"""`python -m lab.tokenizer`: speed of the native encoder of a tokenizer and of the `tokenizers` library.

Both encode the lines of a text file in turns, without special tokens; the ids must be equal.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tokenizers

from cenote.inputs.tokenizer import Tokenizer

# of the library, which uses all cores otherwise; the native encoder uses one thread per call
THREADS_VARIABLE = "RAYON_NUM_THREADS"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.tokenizer", description=__doc__)
    parser.add_argument("tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("texts", type=Path, help="text file; every line is a text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--library-threads", type=int, default=1)
    options = parser.parse_args(arguments)
    os.environ[THREADS_VARIABLE] = str(options.library_threads)
    raw = tokenizers.Tokenizer.from_file(str(options.tokenizer))
    raw.no_truncation()
    raw.no_padding()
    print(compare(raw, options.texts.read_text(encoding="utf-8").splitlines(), options.rounds))


def compare(raw: tokenizers.Tokenizer, texts: Sequence[str], rounds: int) -> str:
    """Return a line with the tokens per second of both: medians over the rounds, and of the first native call."""
    tokenizer = Tokenizer(raw)
    encoder = tokenizer.native.encoder
    if encoder is None:
        return f"no native encoder: {tokenizer.native.reason}"
    theirs, ours, ratios = [], [], []
    for _ in range(rounds):
        library_s, encodings = _measure(lambda: raw.encode_batch_fast(texts, add_special_tokens=False))
        expected = np.concatenate([np.array(encoding.ids, dtype=np.int32) for encoding in encodings])
        native_s, (ids, _) = _measure(lambda: tokenizer.encode_flat(texts))
        if not np.array_equal(ids, expected):
            raise SystemExit("the ids differ")
        theirs.append(len(ids) / library_s / 1000)
        ours.append(len(ids) / native_s / 1000)
        ratios.append(library_s / native_s)
    return (
        f"{tokenizer.native.reason}: {len(expected)} tokens, library {median(theirs):.0f} k tokens/s, native "
        f"{median(ours):.0f} (first call {ours[0]:.0f}), {median(ratios):.1f}x ({min(ratios):.1f}-{max(ratios):.1f}), "
        f"{len(encoder.encode(texts).fallback_indices)} of {len(texts)} texts left to the library"
    )


def _measure(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


if __name__ == "__main__":
    main()
