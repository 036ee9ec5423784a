"""Twelve passages for the examples: three subjects with four passages each."""

from __future__ import annotations

PASSAGES = {
    "caves": [
        "A cenote is a natural pit that forms when limestone bedrock collapses and exposes groundwater.",
        "Stalactites grow from the ceiling of a cave as dripping water leaves minerals behind.",
        "Divers have mapped hundreds of kilometres of flooded caves under the Yucatan peninsula.",
        "Bats find their way through dark caves by listening to the echoes of their calls.",
    ],
    "bread": [
        "Sourdough bread rises with wild yeast and bacteria from a starter of flour and water.",
        "Kneading dough develops gluten, which gives bread its structure.",
        "A hot oven with steam gives a loaf a thin and crisp crust.",
        "Rye flour has little gluten, so rye bread is denser than wheat bread.",
    ],
    "trains": [
        "The first high-speed railway line opened in Japan in 1964.",
        "Electric locomotives take power from an overhead line or a third rail.",
        "A railway signal tells the driver whether the track ahead is free.",
        "Freight trains carry goods over long distances with little energy per tonne.",
    ],
}
TEXTS = [text for texts in PASSAGES.values() for text in texts]
