"""`python -m tfring.launch` is `tfringrun`."""

import sys

from tfring.launch.cli import main

sys.exit(main())
