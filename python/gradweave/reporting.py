"""Lines for who runs the job, through logging."""

import logging
import sys

logger = logging.getLogger("gradweave")


def tell(line, level=logging.INFO):
    """Where the program has set up no logging, on standard error."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("gradweave: %(message)s"))
        logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    logger.log(level, line)
