"""`python -m hessalign` is the command `hessalign`."""

import sys

from hessalign.cli import main

if __name__ == "__main__":
    sys.exit(main())
