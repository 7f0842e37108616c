"""`python -m forebay`: the command for launchers that start modules, as torchrun does."""

import sys

from forebay.early import main

if __name__ == "__main__":
    # As it is typed, which records keep.
    sys.argv[0] = "forebay"
    main()
