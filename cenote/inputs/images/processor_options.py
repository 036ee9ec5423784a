"""What options about images may be: checked before anybody computes with what a stranger wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import Repr
from typing import Any

# more than any image has pixels, and few enough digits to compute with
MOST = 2**53
MOST_SIZES = 256  # that an image is compared with to find the best
# of what the numbers of a pixel are multiplied with, shifted by and divided by: beyond these nothing is left of them
SMALLEST, LARGEST = 1e-6, 1e6
EDGES = ("height", "width", "shortest_edge", "longest_edge", "min_pixels", "max_pixels")

_short = Repr()
_short.maxlevel, _short.maxstring, _short.maxother = 3, 60, 60


def shortened(value: object) -> str:
    """A value as messages show it, however long or deep it is."""
    return _short.repr(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_factor(value: Any) -> bool:
    return _is_number(value) and abs(value) >= SMALLEST


def _are_three(value: Any, kind: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(kind, value))


def _is_size(value: Any) -> bool:
    if isinstance(value, Mapping):
        return 0 < len(value) <= len(EDGES) and all(
            name in EDGES and (_is_whole(side) or side is None) for name, side in value.items()
        )
    return _is_whole(value)


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= MOST_SIZES
        and all(isinstance(size, list | tuple) and len(size) == 2 and all(map(_is_whole, size)) for size in value)
    )


SIZES = ("size", "crop_size", "max_image_size")
FLAG = (lambda value: isinstance(value, bool), "true or false")
COUNT = (_is_whole, f"a whole number, 1 to {MOST}")
SIZE = (_is_size, f"a number of pixels, or an object of such with some of {', '.join(EDGES)}")
KINDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_image_splitting"), FLAG),
    **dict.fromkeys(("dynamic_image_size", "use_thumbnail"), FLAG),
    **dict.fromkeys(("min_pixels", "max_pixels", "max_num_patches", "num_crops"), COUNT),
    **dict.fromkeys(("min_dynamic_patch", "max_dynamic_patch"), COUNT),
    **dict.fromkeys(SIZES, SIZE),
    "resample": (lambda value: value in range(6) and not isinstance(value, bool), "0 to 5, as Pillow counts its ways"),
    "rescale_factor": (_is_factor, f"a number, {SMALLEST:g} to {LARGEST:g}"),
    "image_mean": (lambda value: _are_three(value, _is_number), f"3 numbers, up to {LARGEST:g}"),
    "image_std": (lambda value: _are_three(value, _is_factor), f"3 numbers, {SMALLEST:g} to {LARGEST:g}"),
    "image_grid_pinpoints": (_are_sizes, f"1 to {MOST_SIZES} pairs of height and width"),
}


def wrong_option(options: Mapping[str, Any]) -> str | None:
    """What is wrong with the first of them that is not what its name says, if any is; null is always left alone."""
    for name, value in options.items():
        if name in KINDS and value is not None and not KINDS[name][0](value):
            return f"{name} is {shortened(value)}; it is {KINDS[name][1]}"
    return None
