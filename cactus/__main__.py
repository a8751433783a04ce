"""`python -m cactus`."""

import sys

from cactus.cli import main

if __name__ == "__main__":
    sys.exit(main())
