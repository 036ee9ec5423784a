"""Small helpers that the whole package shares; FlexibleArgumentParser is in `vllm.utils` as well."""

from cenote.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
