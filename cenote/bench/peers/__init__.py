"""Scripts that run one engine each, with the Python of whatever environment has it; none of them needs this package.

`worker.py` is started with the path of one of the others, which has a class `Engine`.
"""
