"""hub.py: folders with an artifact, for Hugging Face's library transformers: the quantization method "thimble".

A folder has config.json, whose "quantization_config" names the method, and model.thmb. from_pretrained() decodes the
weights one by one, straight into the dtype that they are loaded in; save_pretrained() copies the artifact. Registered
when transformers is imported after thimble, or thimble after transformers.

transformers finds no weights but those of safetensors and torch.save: two functions of its module modeling_utils, which
look for files and open them, are wrapped here, for files called model.thmb alone.
"""

from __future__ import annotations

import os
import shutil
import threading
import types
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import transformers.modeling_utils as modeling
from transformers.quantizers import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.hub import cached_file
from transformers.utils.quantization_config import QuantizationConfigMixin

from .artifact import LAYOUT_KEY, Artifact
from .errors import FormatError, IoError, UsageError

METHOD = "thimble"
ARTIFACT_FILE = "model.thmb"
CARD_FILE = "README.md"
NEWEST_FORMAT = 3
DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
SAFETENSORS_NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


# The quantizer whose tensors are opened next, in this thread.
_loading: ContextVar[ThimbleQuantizer | None] = ContextVar("loading", default=None)


# transformers asks for several tensors at a time, while decoding one takes a few times its memory and all processors.
_decoding = threading.Lock()


class ThimbleConfig(QuantizationConfigMixin):
    """What "quantization_config" of config.json says. Raises FormatError for a version that is not known here."""

    def __init__(self, format_version: int = NEWEST_FORMAT, quant_method: str = METHOD, **others: object) -> None:
        self.quant_method = quant_method
        self.format_version = format_version
        if not isinstance(format_version, int) or not 1 <= format_version <= NEWEST_FORMAT:
            raise FormatError(
                f"config.json: 'format_version' of 'quantization_config' is {format_version!r}, this thimble reads 1 to "
                f"{NEWEST_FORMAT}"
            )
        if others:
            raise FormatError(f"config.json: 'quantization_config' has an unknown member {next(iter(others))!r}")


class _Stored:
    """A tensor of an artifact as transformers' loader takes one: decoded by [...], in the dtype that it is to have."""

    def __init__(self, artifact: Artifact, place: int, shape: tuple[int, ...]) -> None:
        self.artifact, self.place, self.shape = artifact, place, shape
        loading = _loading.get()
        # Whoever loads it: the newer versions of transformers ask for the dtype of each tensor (get_new_dtype()).
        self.dtype = loading.dtype if loading else torch.bfloat16
        self.failures: list[Exception] = loading.failures if loading else []

    def get_shape(self) -> list[int]:
        return list(self.shape)

    def get_dtype(self) -> str:
        return SAFETENSORS_NAMES[self.dtype]

    def is_floating_point(self) -> bool:
        return True

    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    def element_size(self) -> int:
        return self.dtype.itemsize

    def __getitem__(self, index: object) -> torch.Tensor:
        try:
            with _decoding:
                array = self.artifact._core.decode_for_checkpoint(self.place, DTYPES[self.dtype])
                self.artifact._core.release_pages()
        except Exception as error:
            self.failures.append(error)
            raise
        values = torch.from_dlpack(array)
        return values if index is Ellipsis else values[index]


class _Assembled(_Stored):
    """The same of a parameter whose matrices lie in the artifact one by one, or transposed (artifact.in_parameters())."""

    def __init__(self, artifact: Artifact, name: str, how: dict[str, Any]) -> None:
        parts = [f"{name}.{part}" for part in range(how["parts"])] if "parts" in how else [name]
        missing = next((part for part in parts if part not in artifact._places), None)
        if missing is not None:
            raise FormatError(f"{artifact.path}: tensor {missing!r} is missing, which its config names")
        self.parts = [_Stored(artifact, artifact._places[part], artifact.tensors[part].shape) for part in parts]
        one = self.parts[0].shape
        one = tuple(how["shape"]) if "shape" in how else one[::-1] if how["turned"] else one
        super().__init__(artifact, self.parts[0].place, (len(parts), *one) if "parts" in how else one)
        self.how = how

    def __getitem__(self, index: object) -> torch.Tensor:
        made: torch.Tensor | None = None
        for i, part in enumerate(self.parts):
            part.dtype, part.failures = self.dtype, self.failures
            values = part[...]
            values = values.reshape(self.how["shape"]) if "shape" in self.how else values
            values = values.T if self.how.get("turned") else values
            if "parts" not in self.how:
                made = values.contiguous()
                break
            made = torch.empty(self.shape, dtype=self.dtype) if made is None else made
            made[i] = values
        return made if index is Ellipsis else made[index]


def _stored_tensors(path: str) -> dict[str, _Stored]:
    """The tensors of an artifact, whose bytes are checked here, by the names of the checkpoint."""
    artifact = Artifact(path)
    artifact._core.check_bytes()
    artifact._core.release_pages()
    tensors = {}
    for place in range(len(artifact.tensors)):
        name, shape = artifact._core.place_in_checkpoint(place)
        tensors[name] = _Stored(artifact, place, tuple(shape))
    for name, how in (artifact.config.get(LAYOUT_KEY) or {}).items():
        if name == "tied":
            continue
        for part in range(how.get("parts", 0)):
            tensors.pop(f"{name}.{part}", None)
        tensors[name] = _Assembled(artifact, name, how)
    return tensors


class ThimbleQuantizer(HfQuantizer):
    """Loads the weights that an artifact's codes stand for, as an ordinary model's."""

    requires_calibration = True
    dtype = torch.bfloat16

    def validate_environment(self, *args: object, **kwargs: object) -> None:
        _require_wrapped()

    def update_attn_implementation(self, config: Any) -> Any:
        config.transformers_weights = ARTIFACT_FILE  # what the wrapped search for files goes by
        return config

    update_tp_plan = update_attn_implementation  # one of which each version asks before it searches

    def update_dtype(self, dtype: torch.dtype | None) -> torch.dtype:
        dtype = torch.bfloat16 if dtype is None else dtype
        if dtype not in DTYPES:
            raise UsageError(f"dtype {dtype} is none of {', '.join(map(str, DTYPES))}")
        self.dtype = dtype
        return dtype

    def get_new_dtype(self, converter: object, param: object, dtype: torch.dtype | None) -> torch.dtype | None:
        if not isinstance(param, _Stored) or dtype not in DTYPES:
            return super().get_new_dtype(converter, param, dtype)
        param.dtype = dtype
        param.failures = self.failures
        return None  # it is decoded as that: nothing is left to convert

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: list[str], **_: Any) -> None:
        self.artifact_path = checkpoint_files[0]
        self.failures: list[Exception] = []
        _loading.set(self)
        _refuse_incomplete(model, self.artifact_path, self.failures)

    def _process_model_after_weight_loading(self, model: Any, **_: object) -> None:
        _loading.set(None)
        model.config.__dict__.pop("transformers_weights", None)
        versions = {name: parameter._version for name, parameter in model.named_parameters()}
        model._thimble_artifact = os.path.abspath(self.artifact_path)
        model._thimble_versions = versions
        model.save_pretrained = types.MethodType(save_pretrained, model)

    def _dequantize(self, model: Any, dtype: torch.dtype | None = None) -> Any:
        """The model is an ordinary one already: only what makes save_pretrained() write the artifact goes."""
        for name in ("save_pretrained", "_thimble_artifact", "_thimble_versions"):
            model.__dict__.pop(name, None)
        return model if dtype in (None, model.dtype) else model.to(dtype)  # which would also narrow its buffers

    def is_serializable(self, **_: object) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False  # changed weights would not be those of the artifact; after dequantize() they may be


def save_pretrained(self: Any, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **_: object) -> None:
    """Of a model that was loaded from an artifact: writes config.json, generation_config.json, model.thmb, which is
    copied, and README.md where the artifact had one beside it. Raises UsageError where weights have been changed since;
    `model.dequantize()` makes it a model that is saved in full."""
    if push_to_hub:
        raise UsageError("save_pretrained: push_to_hub is not done here; model.push_to_hub(...) is the way")
    for name, parameter in self.named_parameters():
        if self._thimble_versions.get(name) != parameter._version:
            raise UsageError(
                f"{self._thimble_artifact}: parameter {name!r} has been changed since it was loaded, and an artifact is "
                "saved as it is; model.dequantize() makes this a model whose weights are saved in full"
            )
    folder = Path(save_directory)
    source = Path(self._thimble_artifact)
    folder.mkdir(parents=True, exist_ok=True)
    self.config.architectures = [type(self).__name__]
    self.config.save_pretrained(folder)
    if self.can_generate():
        self.generation_config.save_pretrained(folder)
    for file in (source, source.parent / CARD_FILE):
        if file.exists() and file.resolve() != (folder / file.name).resolve():
            temporary = folder / (file.name + ".part")
            shutil.copyfile(file, temporary)
            temporary.replace(folder / file.name)


def _refuse_incomplete(model: Any, path: str, failures: list[Exception]) -> None:
    """Makes the end of loading a FormatError where the artifact lacks a tensor of the model, or one did not decode:
    transformers itself would go on with random values."""
    adjust = model._adjust_missing_and_unexpected_keys

    def adjust_then_check(*given: Any) -> Any:
        adjusted = adjust(*given)
        del model._adjust_missing_and_unexpected_keys
        info = given[0]  # of the first versions a set of names
        missing = adjusted[0] if isinstance(info, set) else info.missing_keys
        if failures:
            if not isinstance(info, set):
                info.conversion_errors.clear()  # of which the report at the end would make another exception
            raise failures[0]
        if missing:
            names = sorted(missing)
            raise FormatError(f"{path}: tensor {names[0]!r} is missing" + (f", {len(names)} in all" if names[1:] else ""))
        return adjusted

    model._adjust_missing_and_unexpected_keys = adjust_then_check


_find_files: Callable[..., Any] | None = getattr(modeling, "_get_resolved_checkpoint_files", None)
_load_file: Callable[..., Any] | None = getattr(modeling, "load_state_dict", None)
_load_tensors: Callable[..., Any] | None = getattr(modeling, "convert_and_load_state_dict_in_model", None)


def _require_wrapped() -> None:
    if _find_files is None or _load_file is None or _load_tensors is None:
        raise UsageError(f"transformers {transformers_version()} has another loader than thimble knows: 5.0 or later is needed")


def transformers_version() -> str:
    import transformers

    return transformers.__version__


def _find_artifact(*args: Any, **kwargs: Any) -> Any:
    if kwargs.get("transformers_explicit_filename") != ARTIFACT_FILE:
        return _find_files(*args, **kwargs)
    source = str(kwargs["pretrained_model_name_or_path"])
    download = dict(kwargs.get("download_kwargs") or {})
    if os.path.isdir(source):
        path = os.path.join(source, download.get("subfolder") or "", ARTIFACT_FILE)
        if not os.path.isfile(path):
            raise IoError(f"{path}: there is no such file, which the folder's config.json stands for")
        return [path], None
    return [cached_file(source, ARTIFACT_FILE, **download)], None


def _open_artifact(checkpoint_file: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
    if os.path.basename(os.fspath(checkpoint_file)) != ARTIFACT_FILE:
        return _load_file(checkpoint_file, *args, **kwargs)
    return _stored_tensors(os.fspath(checkpoint_file))


def register() -> None:
    """Makes "thimble" a quantization method of transformers."""
    register_quantization_config(METHOD)(ThimbleConfig)
    register_quantizer(METHOD)(ThimbleQuantizer)
    if _find_files is not None:
        modeling._get_resolved_checkpoint_files = _find_artifact
    if _load_file is not None:
        modeling.load_state_dict = _open_artifact
