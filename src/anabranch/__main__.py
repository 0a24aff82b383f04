"""`python -m anabranch` is the command line, installed or not."""

import sys

from anabranch.cli import main

if __name__ == "__main__":
    sys.exit(main())
