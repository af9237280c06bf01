"""`python -m tfring.bench.train`."""

import sys

from tfring.bench.train.cli import main

if __name__ == "__main__":
    sys.exit(main(prog="python -m tfring.bench.train"))
