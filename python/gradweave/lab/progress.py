"""A progress bar on standard error, silent when that is not a terminal."""

import sys
import time


class Progress:
    """`with Progress(total, "what") as progress: progress.advance()`; shows the share done and the time left."""

    def __init__(self, total, label, enabled=True):
        self.total, self.label, self.done = max(1, total), label, 0
        self.begin = self.shown = time.monotonic()
        self.enabled = enabled and sys.stderr.isatty()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.enabled:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def advance(self, steps=1):
        """Count `steps` as done; draws at most ten times a second."""
        self.done += steps
        now = time.monotonic()
        if not self.enabled or now - self.shown < 0.1:
            return
        self.shown = now
        share = min(1.0, self.done / self.total)
        left = (now - self.begin) * (1 - share) / share
        bar = "#" * round(24 * share)
        sys.stderr.write(f"\r\033[K{self.label:<24.24} [{bar:<24}] {100 * share:3.0f}%  {left:4.0f} s left")
        sys.stderr.flush()
