"""Draw example pages: a page of text, a chart, and two photograph-like images."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, MARGIN = 480, 640, 40
INK, PAPER = (40, 42, 48), (255, 255, 255)
LINES = (
    "The harbour was quiet in the first week of the year, and",
    "only a few boats went out. Ice lay between the piers until",
    "the wind turned to the south. What was caught in January",
    "is less than half of what was caught a year before, and the",
    "prices at the market rose by a fifth. In February the sea",
    "was calm again, and all boats that could sail did so.",
    "The council has voted for a longer pier. Work begins in",
    "May and will take two years; until then the ferry lands at",
    "the old quay, which is to be closed to cars on weekdays.",
)
BARS = ((0.45, (206, 52, 44)), (0.8, (206, 52, 44)), (0.6, (46, 92, 190)), (0.95, (46, 92, 190)), (0.3, (58, 150, 78)))


@cache
def load_font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def draw_text_page() -> Image.Image:
    page, pen = _new_page("Notes from the harbour")
    for number in range(24):
        pen.text((MARGIN, 110 + 20 * number), LINES[number % len(LINES)], fill=INK, font=load_font(14))
    return page


def draw_chart_page() -> Image.Image:
    page, pen = _new_page("Catch by month")
    bottom, top, step = 460, 130, 76
    for line in range(5):
        y = bottom - line * (bottom - top) // 4
        pen.line((MARGIN + 30, y, WIDTH - MARGIN, y), fill=(222, 222, 226))
        pen.text((MARGIN, y - 8), f"{line * 25} t", fill=INK, font=load_font(12))
    for number, (height, colour) in enumerate(BARS):
        left = MARGIN + 36 + number * step
        pen.rectangle((left, bottom - height * (bottom - top), left + 52, bottom), fill=colour)
        pen.text((left + 14, bottom + 8), ("Jan", "Feb", "Mar", "Apr", "May")[number], fill=INK, font=load_font(13))
    for number, line in enumerate(LINES[:4]):
        pen.text((MARGIN, 510 + 20 * number), line, fill=INK, font=load_font(14))
    return page


def draw_sea_page() -> Image.Image:
    """Draw a bright sky with the sun, over water that gets darker towards the viewer."""
    rows = np.linspace(0, 1, HEIGHT)[:, None, None]
    sky = np.array([176, 206, 236]) + rows * np.array([60, 30, 0])
    water = np.array([40, 96, 190]) - (rows - 0.45) * np.array([40, 90, 110])
    page = np.broadcast_to(np.where(rows < 0.45, sky, water), (HEIGHT, WIDTH, 3))
    image = Image.fromarray(page.clip(0, 255).astype(np.uint8))
    ImageDraw.Draw(image).ellipse((300, 90, 380, 170), fill=(250, 214, 70))
    return image


def draw_leaf_page() -> Image.Image:
    """Draw a blurred green texture."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH] / 90
    light = 0.5 + 0.25 * np.sin(down + 0.6 * across) + 0.25 * np.cos(0.8 * across - 0.3 * down)
    page = np.array([20, 70, 30]) + light[..., None] * np.array([70, 120, 50])
    return Image.fromarray(page.clip(0, 255).astype(np.uint8))


PAGES: dict[str, Callable[[], Image.Image]] = {
    "a page of text": draw_text_page,
    "a chart": draw_chart_page,
    "the sea": draw_sea_page,
    "leaves": draw_leaf_page,
}


def _new_page(title: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    page = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, 48), title, fill=INK, font=load_font(26))
    return page, pen
