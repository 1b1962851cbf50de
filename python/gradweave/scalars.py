"""What training takes, told every so many iterations: to TensorBoard, or as JSON lines."""

import json
import logging
import os
import time

from gradweave._native import InvalidInput

logger = logging.getLogger("gradweave")


class Scalars:
    """Of this rank. `read` returns ({name of a sum since the start: its value}, {name of what is so now: its value})."""

    def __init__(self, read):
        self._read = read
        self._told = []  # [where to, every, iterations left, (seconds, sums) at the last line]

    def add(self, target, every):
        """`target`: a path, to whose file lines are appended, or what has TensorBoard's add_scalar(). Errors: InvalidInput."""
        if not (isinstance(every, int) and every > 0):
            raise InvalidInput(f"model.gradweave.log_to(every={every!r}): give a whole number of iterations above 0")
        if not hasattr(target, "add_scalar"):
            try:
                target = _Lines(target)
            except (OSError, TypeError) as error:
                raise InvalidInput(f"model.gradweave.log_to({target!r}): {error}; give the path of a file that can be "
                                   "written, or a torch.utils.tensorboard.SummaryWriter") from None
        self._told.append([target, every, every, (time.monotonic(), self._read()[0])])

    @property
    def targets(self):
        """[(target, every)], as they were added."""
        return [(target.name if isinstance(target, _Lines) else target, every) for target, every, *_ in self._told]

    def restart(self):
        """A checkpoint was loaded, with the sums of the job that it is of."""
        for each in self._told:
            each[3] = time.monotonic(), self._read()[0]

    def iteration_ended(self):
        for each in self._told:
            each[2] -= 1
        for each in [each for each in self._told if each[2] == 0]:
            target, every, _, (then, before) = each
            now, (sums, facts) = time.monotonic(), self._read()
            iterations = sums["iterations"] - before["iterations"]
            each[2:] = every, (now, sums)
            mean = {name: (sums[name] - before[name]) / iterations for name in sums if name != "iterations"}
            values = {"iteration_ms": 1e3 * (now - then) / iterations, "exposed_ms": mean.pop("exposed_ns") / 1e6} | mean
            try:
                _tell(target, sums["iterations"], values, facts)
            except OSError as error:  # training is worth more than what is told of it
                logger.warning("model.gradweave.log_to(%s): logging has stopped: %s",
                               getattr(target, "name", type(target).__name__), error)
                self._told.remove(each)

    def close(self):
        for target, *_ in self._told:
            if isinstance(target, _Lines):
                target.close()
        self._told = []


def _tell(target, iteration, values, facts):
    if isinstance(target, _Lines):
        target.write({"iteration": iteration} | facts | {name: round(value, 4) for name, value in values.items()})
        return
    for name, value in (values | facts).items():
        if isinstance(value, (int, float)):
            target.add_scalar(f"gradweave/{name}", value, iteration)


class _Lines:
    """A file to which whole lines are appended."""

    def __init__(self, path):
        self.name = os.fspath(path)
        self._file = open(path, "ab", buffering=0)

    def write(self, record):
        self._file.write((json.dumps(record) + "\n").encode())

    def close(self):
        self._file.close()
