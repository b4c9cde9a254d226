"""`python -m outrider_verifier`."""

import sys

from outrider_verifier.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
