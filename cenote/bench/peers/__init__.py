"""Worker scripts, one per engine, run by the interpreter of its environment; they do not import this package.

`worker.py` is started with the path of another script, which defines a class `Engine`.
"""
