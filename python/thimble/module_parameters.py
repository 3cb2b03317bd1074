"""module_parameters.py: the parameters of a PyTorch module, wherever they are, and the products of inputs with them.

Libraries that place a model on several devices, or keep parts of it in host memory or on disk (accelerate), leave
parameters on the device "meta", and bring values while a module runs. Here they are found there too.

R = outputs, K = inputs of a matrix
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
_SUMS_OF_PRODUCTS = (torch.addmm, torch.Tensor.addmm)


@dataclass(frozen=True)
class Matrix:
    """A matrix (R, K) as the solvers see it, and where it lies in a parameter."""

    name: str  # in the checkpoint that is quantized
    parameter: str
    part: int | None = None  # of a parameter of three dimensions
    is_turned: bool = False  # stored as (K, R)

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """The matrix (R, K) in the parameter's value."""
        matrix = value if self.part is None else value[self.part]
        return matrix.T if self.is_turned else matrix.flatten(1)

    def stored(self, matrix: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """The other way round: the parameter of this shape, or its part, that holds the matrix (R, K)."""
        return (matrix.T if self.is_turned else matrix).reshape(shape if self.part is None else shape[1:])


@dataclass(frozen=True)
class Product:
    """Of an input (..., K) with a matrix. The R outputs lie along `axis` of the result."""

    matrix: Matrix
    input: torch.Tensor
    axis: int = -1


def digest_of(tensor: torch.Tensor) -> bytes:
    """Of dtype, shape and bytes."""
    values = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=16)
    if values.numel():
        digest.update(memoryview(values.reshape(-1).view(torch.uint8).numpy()))
    return digest.digest()


@dataclass(frozen=True)
class _Elsewhere:
    """A view of a parameter, without its values."""

    name: str
    device: torch.device
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Parameters:
    """Of a module: names, values, and which of them a tensor is while the module runs. Parameters with several names
    have the first one."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self._hooks = list(_offloading_hooks(model))
        self._elsewhere: dict[str, tuple[Mapping[str, torch.Tensor], str]] = {}
        for prefix, module, hook in self._hooks:
            tensors = (module.named_parameters, module.named_buffers)
            for name, tensor in (one for named in tensors for one in named(recurse=hook.place_submodules)):
                if tensor.device.type == "meta":
                    self._elsewhere.setdefault(prefix + name, (hook.weights_map, name))
        self.aliases = self._find_aliases()
        self._here: dict[int, tuple[str, torch.Tensor]] = {}
        for name, parameter in model.named_parameters():
            if parameter.device.type != "meta":
                self._register(name, parameter)

    @property
    def are_offloaded(self) -> bool:
        """Whether some are elsewhere than where they are computed with."""
        return bool(self._hooks)

    def state(self) -> dict[str, torch.Tensor]:
        """As state_dict() has it, each tensor under its first name; those that are elsewhere without values."""
        return {name: value for name, value in self.model.state_dict().items() if name not in self.aliases}

    def value(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Of what state() has under this name."""
        if tensor.device.type != "meta":
            return tensor
        weights, key = self._elsewhere[name]
        return weights[key]

    def values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and value of each, one by one."""
        for name, parameter in self.model.named_parameters():
            if name not in self.aliases:
                yield name, self.value(name, parameter)

    def find(self, tensor: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        """The parameter in whose memory the tensor lies."""
        return self._here.get(tensor.untyped_storage().data_ptr()) if tensor.device.type != "meta" else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within it, find() also knows what hooks bring while modules run. Several forward passes may be under way at
        once, in threads that take turns: what one has brought stays until the last has left."""
        leaves: list[Callable[[], None]] = []
        try:
            leaves = [self._watch(prefix, hook) for prefix, _, hook in self._hooks]
            yield
        finally:
            for *_, hook in self._hooks:
                for name in ("pre_forward", "post_forward"):
                    hook.__dict__.pop(name, None)
            for leave in leaves:
                leave()

    def kept_where_they_are(self) -> AbstractContextManager[None]:
        """Within it, autograd keeps the names of parameters that are elsewhere, and not what hooks have brought."""
        if not self.are_offloaded:
            return nullcontext()

        def pack(tensor: torch.Tensor) -> Any:
            name, parameter = self.find(tensor) or ("", None)
            if parameter is None or name not in self._elsewhere or not parameter.is_contiguous():
                return tensor
            offset = tensor.storage_offset() - parameter.storage_offset()
            return _Elsewhere(name, tensor.device, tensor.dtype, tensor.size(), tensor.stride(), offset)

        def unpack(packed: Any) -> torch.Tensor:
            if not isinstance(packed, _Elsewhere):
                return packed
            weights, key = self._elsewhere[packed.name]
            value = weights[key].to(packed.device, packed.dtype).contiguous()
            return value.as_strided(packed.size, packed.stride, value.storage_offset() + packed.offset)

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _register(self, name: str, value: torch.Tensor) -> None:
        self._here[value.untyped_storage().data_ptr()] = (self.aliases.get(name, name), value)

    def _watch(self, prefix: str, hook: Any) -> Callable[[], None]:
        """Returns what takes back what is still here: of passes that ended within the module."""
        from accelerate.utils import send_to_device

        bring, take = hook.pre_forward, hook.post_forward
        inside, module_inside = 0, None
        brought: list[int] = []

        def pre_forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            nonlocal inside, module_inside
            inside, module_inside = inside + 1, module
            if inside > 1:
                device = hook.execution_device
                return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=hook.skip_keys)
            result = bring(module, *args, **kwargs)
            for name, parameter in module.named_parameters(recurse=hook.place_submodules):
                self._register(prefix + name, parameter)
                brought.append(parameter.untyped_storage().data_ptr())
            return result

        def post_forward(module: torch.nn.Module, output: Any) -> Any:
            nonlocal inside
            inside -= 1
            if inside:
                return send_to_device(output, hook.input_device) if hook.io_same_device else output
            for place in brought:
                self._here.pop(place, None)
            brought.clear()
            return take(module, output)

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = 1
                post_forward(module_inside, None)

        hook.pre_forward, hook.post_forward = pre_forward, post_forward
        return leave

    def _find_aliases(self) -> dict[str, str]:
        """Names of parameters that are another one, by which it is known. Hooks make two of one that has two names: they
        have the same values then."""
        first: dict[Any, str] = {}
        aliases: dict[str, str] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            key: Any = id(parameter)
            if parameter.device.type == "meta" and name in self._elsewhere and parameter.dim() > 1:
                key = digest_of(self.value(name, parameter))
            if first.setdefault(key, name) != name:
                aliases[name] = first[key]
        return aliases


def _offloading_hooks(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Those of accelerate that bring parameters while a module runs, with the prefix of its names and the module."""
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", [hook]):
            if getattr(one, "offload", False) and getattr(one, "weights_map", None) is not None:
                yield f"{name}." if name else "", module, one


Find = Callable[[torch.Tensor], "tuple[str, torch.Tensor] | None"]


def product_of(func: Any, args: Any, kwargs: Any, find: Find) -> Product | None:
    """What a call of one of PyTorch's functions multiplies, where that is an input with a parameter."""
    if func is functional.linear:
        return _product(args[0], args[1], False, find)
    if func in _PRODUCTS and args[1].dim() == 2:
        return _product(args[0], args[1], True, find)
    if func in _SUMS_OF_PRODUCTS:
        return _product(args[1], args[2], True, find)
    if func in _CONVOLUTIONS:
        return _convolution(_CONVOLUTIONS[func], find, *args, **(kwargs or {}))
    return None


def _product(x: torch.Tensor, weight: torch.Tensor, is_input_first: bool, find: Find) -> Product | None:
    """With `weight`, (R, K) or, with is_input_first, (K, R)."""
    name, parameter = find(weight) or ("", None)
    if parameter is None or weight.dim() != 2 or parameter.dim() not in (2, 3) or not parameter.is_contiguous():
        return None
    rows, columns = parameter.shape[-2:]
    is_turned = weight.stride() == (1, columns) and weight.shape == (columns, rows)
    if not is_turned and (weight.shape != (rows, columns) or not weight.is_contiguous()):
        return None
    if parameter.dim() == 2:
        return Product(Matrix(name, name, None, is_turned != is_input_first), x)
    part, rest = divmod(weight.storage_offset() - parameter.storage_offset(), rows * columns)
    return None if rest else Product(Matrix(f"{name}.{part}", name, part, is_turned != is_input_first), x)


def _convolution(dimensions: int, find: Find, x: torch.Tensor, weight: torch.Tensor, bias: Any = None, stride: Any = 1,
                 padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Product | None:  # fmt: skip
    name, parameter = find(weight) or ("", None)
    if parameter is None or weight.shape != parameter.shape or groups != 1 or isinstance(padding, str):
        return None
    lists = [[v] * dimensions if isinstance(v, int) else list(v) for v in (stride, padding, dilation)]
    padded = functional.pad(x.detach(), [p for p in reversed(lists[1]) for _ in (0, 1)])
    padded = padded if weight.dim() == x.dim() else padded[None]
    for axis, (size, step, gap) in enumerate(zip(weight.shape[2:], lists[0], lists[2], strict=True)):
        padded = padded.unfold(2 + axis, (size - 1) * gap + 1, step)[..., ::gap]
    # (batch, channels, positions ..., kernel ...) to (all positions, channels * kernel)
    order = [0, *range(2, 2 + dimensions), 1, *range(2 + dimensions, 2 + 2 * dimensions)]
    return Product(Matrix(name, name), padded.permute(order).reshape(-1, weight[0].numel()), 1)


@contextmanager
def at_rest(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode, none of its parameters wants a gradient; it is left as it was."""
    was_training = model.training
    wanted = {name: parameter.requires_grad for name, parameter in model.named_parameters(remove_duplicate=False)}
    experts = getattr(getattr(model, "config", None), "_experts_implementation", None)
    try:
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        if experts is not None:  # one product for each expert, not one for all of them
            model.config._experts_implementation = "eager"
        yield
    finally:
        model.train(was_training)
        for name, parameter in model.named_parameters(remove_duplicate=False):
            parameter.requires_grad_(wanted[name])
        if experts is not None:
            model.config._experts_implementation = experts
