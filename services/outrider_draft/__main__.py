"""`python -m outrider_draft`."""

import sys

from outrider_draft.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
