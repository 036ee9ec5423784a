"""`python -m cenote`."""

import sys

from cenote.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
