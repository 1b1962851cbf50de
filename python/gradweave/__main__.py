"""`python -m gradweave`."""

import sys
import warnings

from gradweave.cli import main

# What torch says while it is imported where NumPy is missing, which no command needs.
warnings.filterwarnings("ignore", "Failed to initialize NumPy", UserWarning)
sys.exit(main(sys.argv[1:]))
