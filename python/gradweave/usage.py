"""What the user of a command can mend."""


class UsageError(RuntimeError):
    """Bad input, or something that is missing: the message names it and the remedy. Exit code 2."""
