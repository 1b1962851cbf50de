"""`python -m gradweave`."""

import sys
import warnings

from gradweave import releases
from gradweave.cli import main

warnings.filterwarnings("ignore", *releases.WITHOUT_NUMPY)
sys.exit(main(sys.argv[1:]))
