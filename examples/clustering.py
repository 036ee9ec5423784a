"""Group texts by meaning with k-means, and draw them in two dimensions.

python examples/clustering.py
python examples/clustering.py --clusters 4 --plot clusters.png      # needs matplotlib
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from passages import TEXTS
from semantic_search import embed

from cenote import LLM

Array = np.ndarray[Any, Any]


def cluster(vectors: Array, count: int, steps: int = 20) -> Array:
    """Return the cluster of every vector (of length 1), by k-means with the cosine similarity."""
    centres = vectors[:1]
    while len(centres) < count:  # the next centre is the text that is farthest from those before
        farthest = (vectors @ centres.T).max(axis=1).argmin()
        centres = np.vstack([centres, vectors[farthest]])
    for _ in range(steps):
        nearest = (vectors @ centres.T).argmax(axis=1)
        means = [vectors[nearest == number].sum(axis=0) for number in range(count)]
        centres = np.array([mean / (np.linalg.norm(mean) or 1) for mean in means])
    return (vectors @ centres.T).argmax(axis=1)


def project(vectors: Array) -> Array:
    """Return the first two principal components of every vector."""
    centred = vectors - vectors.mean(axis=0)
    return centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T


def draw(vectors: Array, clusters: Array, path: str) -> None:
    from matplotlib import pyplot

    points = project(vectors)
    pyplot.scatter(points[:, 0], points[:, 1], c=clusters, cmap="tab10")
    for point, text in zip(points, TEXTS, strict=True):
        pyplot.annotate(text[:24], point, fontsize=6)
    pyplot.savefig(path, dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or hub name; a small bundled model if unset")
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--plot", metavar="FILE", help="draw the texts into an image; needs matplotlib")
    args = parser.parse_args(arguments)
    with LLM(args.model) as llm:
        vectors = embed(llm, TEXTS)
    clusters = cluster(vectors, args.clusters)
    for number in range(args.clusters):
        print(f"cluster {number + 1}")
        for index in np.flatnonzero(clusters == number):
            print(f"  {TEXTS[index]}")
    if args.plot:
        draw(vectors, clusters, args.plot)


if __name__ == "__main__":
    main()
