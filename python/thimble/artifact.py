"""artifact.py: artifacts (.thmb): what they say of themselves, and their tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _thimble
from .errors import UsageError

if TYPE_CHECKING:
    import numpy
    import torch

    Array = numpy.ndarray | torch.Tensor

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
LAYOUT_KEY = "thimble_layout"
BYTES_AT_ONCE = 64 << 20  # of float32 values, between looks for KeyboardInterrupt


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of an artifact."""

    name: str
    shape: tuple[int, ...]
    stored_as: str  # "int5", "steps", "trellis8", "nvfp4", "F16", ...
    elements: int
    stored_bytes: float  # tensors that share a section have their share of it

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.stored_bytes / self.elements if self.elements else 0.0


class Artifact:
    """What an artifact says of itself: its front, which is read and checked here. Raises IoError and FormatError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._core = _thimble.Artifact(self.path)
        self.tensors: dict[str, TensorInfo] = {
            name: TensorInfo(name, tuple(shape), *rest) for name, shape, *rest in self._core.tensors()
        }
        self._places = {name: place for place, name in enumerate(self.tensors)}

    @property
    def file_bytes(self) -> int:
        return self._core.file_bytes

    @property
    def format_version(self) -> int:
        return self._core.format_version

    @property
    def config(self) -> dict[str, Any]:
        """The model's config."""
        return json.loads(self._core.config)

    @property
    def provenance(self) -> dict[str, Any]:
        """What made the artifact: method, settings, version, calibration."""
        return json.loads(self._core.provenance)

    @property
    def parameters(self) -> int:
        return sum(tensor.elements for tensor in self.tensors.values())

    @property
    def bits_per_weight(self) -> float:
        """Of the whole file."""
        return 8 * self.file_bytes / max(1, self.parameters)

    def check(self) -> None:
        """Raises FormatError unless the file's checksum is right and all of it decodes."""
        self._core.check()

    def __repr__(self) -> str:
        return (
            f"<thimble.Artifact {self.path!r}: {len(self.tensors)} tensors, {self.parameters:,} parameters, "
            f"{self.file_bytes:,} B, {self.bits_per_weight:.3f} bits per parameter>"
        )


class Tensors(Mapping[str, "Array"]):
    """The tensors of an artifact, each decoded when it is asked for; `read()` decodes many on all threads.

    Sections are checked as they are decoded. Raises FormatError, and KeyError for names that are not there.
    """

    def __init__(self, artifact: Artifact, device: str | torch.device | None, dtype: str) -> None:
        self.artifact = artifact
        self._dtype = _dtype_code(dtype, device)
        self._device = device

    def __getitem__(self, name: str) -> Array:
        return self._decode([name])[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.artifact.tensors)

    def __len__(self) -> int:
        return len(self.artifact.tensors)

    def read(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """These tensors, or all."""
        found: dict[str, Array] = {}
        for group in self._groups(list(self if names is None else names)):
            found.update(zip(group, self._decode(group), strict=True))
        return found

    def __repr__(self) -> str:
        return f"<thimble.Tensors of {self.artifact!r}>"

    def _decode(self, names: list[str]) -> list[Array]:
        arrays = self.artifact._core.decode([self._place(name) for name in names], self._dtype)
        return [_to_user(array, self._device) for array in arrays]

    def _place(self, name: str) -> int:
        if name not in self.artifact._places:
            raise KeyError(f"{self.artifact.path} has no tensor {name!r}")
        return self.artifact._places[name]

    def _groups(self, names: list[str]) -> Iterator[list[str]]:
        """Of BYTES_AT_ONCE at most, or one."""
        group: list[str] = []
        total = 0
        for name in names:
            self._place(name)  # before anything is decoded
            size = 4 * self.artifact.tensors[name].elements
            if group and total + size > BYTES_AT_ONCE:
                yield group
                group, total = [], 0
            group.append(name)
            total += size
        if group:
            yield group


def load(
    path: str | os.PathLike[str], device: str | torch.device | None = None, dtype: str = "float32"
) -> Tensors:
    """An artifact's tensors, by name. Values are float32 unless `dtype` is "float16" or "bfloat16"; tensors of integers
    stay as they are. Without a `device` they are NumPy arrays, with one (a name, or a torch.device) tensors of PyTorch
    on it. Raises IoError, FormatError and UsageError."""
    return Tensors(Artifact(path), device, dtype)


def state_dict(
    path: str | os.PathLike[str], device: str | torch.device | None = None, dtype: str = "float32"
) -> dict[str, Array]:
    """All tensors under the names and in the shapes of the checkpoint that was quantized, banks too, for
    `model.load_state_dict()`. The whole file is checked and decoded at once, on all threads."""
    core = _thimble.state_dict(os.fspath(path), _dtype_code(dtype, device))
    tensors = {name: _to_user(array, device) for name, array in core.items()}
    return in_parameters(tensors, Artifact(path).config)


def in_parameters(tensors: dict[str, Array], config: dict[str, Any]) -> dict[str, Array]:
    """Matrices of an artifact that thimble.quantize() made as the module's parameters have them, which its config says
    under LAYOUT_KEY: stacked, transposed, of more dimensions, under several names."""
    layout = dict(config.get(LAYOUT_KEY) or {})
    tied = layout.pop("tied", {})
    for name, how in layout.items():
        if "parts" in how:
            parts = [tensors.pop(f"{name}.{part}") for part in range(how["parts"])]
            tensors[name] = _stacked([part.T for part in parts] if how["turned"] else parts)
        elif "shape" in how:
            tensors[name] = tensors[name].reshape(how["shape"])
        else:
            tensors[name] = _contiguous(tensors[name].T)
    return tensors | {name: tensors[source] for name, source in tied.items()}


def _stacked(parts: list[Any]) -> Array:
    if hasattr(parts[0], "new_empty"):
        import torch

        return torch.stack(parts)
    import numpy

    return numpy.stack(parts)


def _contiguous(matrix: Any) -> Array:
    return matrix.contiguous() if hasattr(matrix, "contiguous") else matrix.copy()


def _dtype_code(dtype: str, device: object) -> str:
    if dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if dtype == "bfloat16" and device is None:
        raise UsageError("NumPy has no bfloat16: give a device, for tensors of PyTorch, or another dtype")
    return DTYPES[dtype]


def _to_user(array: Any, device: object) -> Array:
    if device is None:
        import numpy

        return numpy.asarray(array)
    import torch

    return torch.from_dlpack(array).to(device)

