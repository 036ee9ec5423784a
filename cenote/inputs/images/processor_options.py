"""Validate image processor options, which can come from untrusted requests, before they are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cenote.utils.text import short_repr

# above the pixel count of any image, and exact in float64
MAX_INTEGER = 2**53
MAX_PINPOINTS = 256  # candidate resolutions per image
# range of rescale_factor, image_mean and image_std: beyond it float32 pixels lose all information
MIN_SCALE, MAX_SCALE = 1e-6, 1e6
SIZE_KEYS = ("height", "width", "shortest_edge", "longest_edge", "min_pixels", "max_pixels")


def _is_positive_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_INTEGER


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_SCALE


def _is_scale(value: Any) -> bool:
    return _is_number(value) and abs(value) >= MIN_SCALE


def _is_triple(value: Any, predicate: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(predicate, value))


def _is_size(value: Any) -> bool:
    if isinstance(value, Mapping):
        return 0 < len(value) <= len(SIZE_KEYS) and all(
            name in SIZE_KEYS and (_is_positive_int(side) or side is None) for name, side in value.items()
        )
    return _is_positive_int(value)


def _is_size_list(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and 1 <= len(value) <= MAX_PINPOINTS
        and all(
            isinstance(size, list | tuple) and len(size) == 2 and all(map(_is_positive_int, size)) for size in value
        )
    )


SIZE_OPTIONS = ("size", "crop_size", "max_image_size")
FLAG_RULE = (lambda value: isinstance(value, bool), "true or false")
COUNT_RULE = (_is_positive_int, f"an integer from 1 to {MAX_INTEGER}")
SIZE_RULE = (_is_size, f"a number of pixels, or an object with some of {', '.join(SIZE_KEYS)}")
OPTION_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_image_splitting"), FLAG_RULE),
    **dict.fromkeys(("dynamic_image_size", "use_thumbnail"), FLAG_RULE),
    **dict.fromkeys(("min_pixels", "max_pixels", "max_num_patches", "num_crops"), COUNT_RULE),
    **dict.fromkeys(("min_dynamic_patch", "max_dynamic_patch"), COUNT_RULE),
    **dict.fromkeys(SIZE_OPTIONS, SIZE_RULE),
    "resample": (lambda value: value in range(6) and not isinstance(value, bool), "0 to 5 (PIL.Image.Resampling)"),
    "rescale_factor": (_is_scale, f"a number from {MIN_SCALE:g} to {MAX_SCALE:g}"),
    "image_mean": (lambda value: _is_triple(value, _is_number), f"3 numbers up to {MAX_SCALE:g}"),
    "image_std": (lambda value: _is_triple(value, _is_scale), f"3 numbers from {MIN_SCALE:g} to {MAX_SCALE:g}"),
    "image_grid_pinpoints": (_is_size_list, f"1 to {MAX_PINPOINTS} pairs of height and width"),
}


def validate_options(options: Mapping[str, Any]) -> str | None:
    """Return an error message for the first invalid option, None if all are valid; null values are not checked."""
    for name, value in options.items():
        if name in OPTION_RULES and value is not None and not OPTION_RULES[name][0](value):
            return f"invalid {name}={short_repr(value)}; expected {OPTION_RULES[name][1]}"
    return None
