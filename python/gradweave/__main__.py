"""`python -m gradweave`."""

import sys

from gradweave.cli import main

sys.exit(main(sys.argv[1:]))
