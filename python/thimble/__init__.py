"""thimble: artifacts (.thmb) of compressed language models, from Python.

    import thimble
    print(thimble.open("model.thmb"))                          # what it is
    weights = thimble.load("model.thmb")                       # a mapping; tensors are decoded when asked for
    model.load_state_dict(thimble.state_dict("model.thmb", device="cpu"))

docs/python.md shows more.
"""

from __future__ import annotations

from ._import_hook import after_import
from ._thimble import __version__
from .artifact import Artifact, TensorInfo, Tensors, load, state_dict
from .errors import CheckError, DeviceError, Error, FormatError, IoError, UsageError

open = Artifact  # noqa: A001: as people look for it


def _register_in_transformers() -> None:
    from . import hub

    hub.register()


def __getattr__(name: str) -> object:
    """What needs PyTorch is imported when it is first asked for."""
    if name in ("collect", "quantize", "Report"):
        from .module_statistics import collect
        from .module_quantizer import Report, quantize

        globals().update(collect=collect, quantize=quantize, Report=Report)
        return globals()[name]
    raise AttributeError(f"module 'thimble' has no attribute {name!r}")


after_import("transformers.modeling_utils", _register_in_transformers)

__all__ = [
    "Artifact",
    "CheckError",
    "DeviceError",
    "Error",
    "FormatError",
    "IoError",
    "Report",
    "TensorInfo",
    "Tensors",
    "UsageError",
    "__version__",
    "collect",
    "load",
    "open",
    "quantize",
    "state_dict",
]
