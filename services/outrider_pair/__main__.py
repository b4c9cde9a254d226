"""`python -m outrider_pair`."""

import sys

from outrider_pair.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
