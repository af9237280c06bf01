"""`python -m tfring` is `tfring`."""

import sys

from tfring.cli import main

if __name__ == "__main__":
    sys.exit(main())
