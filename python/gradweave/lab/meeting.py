"""`gradweave meet` on this machine."""

import subprocess
from pathlib import Path

COMMAND = [str(Path(__file__).resolve().parents[3] / "build/gradweave"), "meet"]


class Meeting:
    """On a port of its own, which it keeps when it dies and starts again. A context manager, too."""

    def __init__(self, folder, lease="2s", host="127.0.0.1", prefix=(), options=()):
        """`prefix`: of its command, as where `host` is one of a network of its own; `options`: of it besides."""
        self.key, self._options, self._prefix = f"{folder}/job.key", ["--lease", lease, *options], prefix
        subprocess.run([*COMMAND, "--make-key", self.key], check=True)
        self.address = f"{host}:0"
        self.start()

    def start(self):
        listen = ["--listen", self.address, "--key", self.key]
        self._process = subprocess.Popen([*self._prefix, *COMMAND, *listen, *self._options],
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self._process.stdout.readline().split()[-1]

    @property
    def process(self):
        """Its number."""
        return self._process.pid

    def end(self):
        self._process.kill()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    @property
    def given(self):
        """What wrap() is given."""
        return {"islands": self.address, "key": self.key}
