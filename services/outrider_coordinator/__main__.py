"""`python -m outrider_coordinator`."""

import sys

from outrider_coordinator.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
