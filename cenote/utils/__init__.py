"""Small helpers that the whole package shares.

FlexibleArgumentParser is in `vllm.utils` as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cenote.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from cenote.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]

# `import cenote` does not need argparse
__getattr__ = lazy_names(__name__, {"FlexibleArgumentParser": "cenote.utils.argparse_utils"})
