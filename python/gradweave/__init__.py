"""Gradweave schedules the communication of data-parallel training.

    model, optimizer = gradweave.wrap(model, optimizer)

and the training loop stays as it is. docs/runtime.md says what the loop may do.
"""

import importlib.util
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradweave._native import InvalidInput, RuntimeFailure
    from gradweave.links import EmulatedLink
    from gradweave.wrapping import Wrapped, clip_grad_norm_, finish, wrap

__version__ = "0.1.0"

__all__ = ["wrap", "finish", "clip_grad_norm_", "Wrapped", "EmulatedLink", "InvalidInput", "RuntimeFailure"]

# The others: wrapping.
_HOMES = {"EmulatedLink": "links", "InvalidInput": "_native", "RuntimeFailure": "_native", "_native": "_native"}

if not TYPE_CHECKING:
    def __getattr__(name):
        # Late, so that commands which need no torch start quickly and `doctor` can say why torch cannot be loaded.
        if name not in __all__ and name != "_native":
            raise AttributeError(f"module 'gradweave' has no attribute '{name}'")
        home = _HOMES.get(name, "wrapping")
        if importlib.util.find_spec("gradweave._core"):  # the package without torch
            if home != "_native" or name == "_native":
                raise ImportError(f"gradweave.{name}: this is gradweave-core, which plans and simulates; for training install "
                                  "PyTorch and the package gradweave instead", name="gradweave._native")
            home = "_core"
        else:
            _check_torch(name)
        module = importlib.import_module("gradweave." + home)
        return module if name == home else getattr(module, name)

    def _check_torch(name):
        # Before the extension is loaded, which beside another torch would fail without a word that helps, or end the process.
        from gradweave import releases
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", *releases.WITHOUT_NUMPY)
                import torch  # the extension's libraries are torch's
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ImportError(f"gradweave.{name} needs PyTorch, which is not installed here: pip install '{releases.RANGE}'. "
                              "Planning and simulation work without it by the command 'gradweave'", name="torch") from None
        if reason := releases.reason_against(torch.__version__, releases.built_for()):
            raise ImportError(f"gradweave.{name}: {reason}", name="gradweave._native")
