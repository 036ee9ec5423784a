"""Small helpers that the whole package shares.

FlexibleArgumentParser is in `vllm.utils` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cenote.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]


def __getattr__(name: str) -> Any:
    # imported on use: `import cenote` does not need argparse
    if name != "FlexibleArgumentParser":
        raise AttributeError(f"module 'cenote.utils' has no attribute {name!r}")
    from cenote.utils.argparse_utils import FlexibleArgumentParser

    return FlexibleArgumentParser
