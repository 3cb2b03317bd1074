"""module_pairs.py: what matrices of a PyTorch module read in the original, and beside it in the module with the matrices
that are quantized so far: the pairs (x, x~) of cross terms.

Each batch has two forward passes, each in a thread of its own. They take turns: one runs at a time, to the input that is
asked for, and waits there with its activations, so that each layer runs once for each pass. The module itself is not
changed: where it computes with a parameter, the quantized pass has other values of it.

R = outputs, K = inputs of a matrix
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from .errors import Error, FormatError
from .module_parameters import Matrix, Parameters, at_rest, product_of


class QuantizedValues:
    """Parameters of the quantized module, by name: those that have been given, in the dtype and on the device that the
    originals have, or in host memory where these are elsewhere than where they are computed with."""

    def __init__(self, parameters: Parameters, places: Mapping[str, Matrix]) -> None:
        self.parameters, self.places = parameters, places
        self.originals = parameters.state()
        self.values: dict[str, torch.Tensor] = {}
        self._brought: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}  # by storage

    def put(self, name: str, array: numpy.ndarray) -> None:
        """A tensor of the artifact."""
        place = self.places[name]
        if place.parameter not in self.originals:
            return
        if place.parameter not in self.values:
            original = self.parameters.value(place.parameter, self.originals[place.parameter])
            self.values[place.parameter] = value = original.detach().clone(memory_format=torch.preserve_format)
            self._names[value.untyped_storage().data_ptr()] = place.parameter
        given = torch.from_numpy(array)
        for value in (self.values[place.parameter], self._brought.get(place.parameter)):
            if value is not None:
                (place.of(value) if given.dim() == 2 else value).copy_(given)

    def on(self, name: str, device: torch.device) -> torch.Tensor:
        value = self.values[name]
        if value.device == device:
            return value
        if name not in self._brought:
            self._brought[name] = brought = value.to(device)
            self._names[brought.untyped_storage().data_ptr()] = name
        return self._brought[name]

    def forget_brought(self) -> None:
        for value in self._brought.values():
            self._names.pop(value.untyped_storage().data_ptr(), None)
        self._brought.clear()

    def find(self, tensor: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        """The parameter, original or quantized, in whose memory the tensor lies."""
        if tensor.device.type != "meta":
            name = self._names.get(tensor.untyped_storage().data_ptr())
            if name is not None:
                return name, self.values[name]
        return self.parameters.find(tensor)


class _View:
    """Of a parameter: what a call was given."""

    def __init__(self, name: str, parameter: torch.Tensor, tensor: torch.Tensor) -> None:
        self.name, self.tensor = name, tensor
        self.offset = tensor.storage_offset() - parameter.storage_offset()

    def quantized(self, values: QuantizedValues) -> torch.Tensor:
        if self.name not in values.values:
            return self.tensor
        value = values.on(self.name, self.tensor.device)
        return value.as_strided(self.tensor.size(), self.tensor.stride(), value.storage_offset() + self.offset)


class _Pass(TorchFunctionMode):
    """One forward pass, which waits before it reads an input that is asked for."""

    def __init__(self, run: Callable[[], Any], find: Any, quantized: QuantizedValues | None) -> None:
        super().__init__()
        self.find, self.quantized = find, quantized
        self._run = run
        self._wanted: str | None = None
        self._input: torch.Tensor | None = None
        self._error: BaseException | None = None
        self._go, self._arrived = threading.Semaphore(0), threading.Semaphore(0)
        self._is_over = False
        self._thread = threading.Thread(target=self._pass, daemon=True)
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self._thread.start()

    def advance(self, name: str) -> torch.Tensor:
        """Its input (positions, K) in float32 of the product with the matrix, before which the pass now waits."""
        self._wanted = name
        self._go.release()
        self._arrived.acquire()
        if self._error is not None:
            raise self._error
        if self._input is None:
            raise Error(f"matrix {name!r} is not read where the statistics have seen it read")
        found, self._input = self._input, None
        return found.reshape(-1, found.shape[-1]).float()

    def close(self) -> None:
        self._is_over = True
        self._go.release()
        self._thread.join()

    def _pass(self) -> None:
        self._go.acquire()
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            if not self._is_over:
                with torch.no_grad(), self:
                    self._run()
        except _Closed:
            pass
        except BaseException as error:  # raised again by who waits for it
            self._error = error
        self._arrived.release()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = product_of(func, args, kwargs, self.find)
        if self.quantized is not None:  # what it is may change while the pass waits
            args, kwargs = tree_map(self._named, (args, kwargs))
        if product is not None and product.matrix.name == self._wanted:
            self._wanted, self._input = None, product.input
            self._arrived.release()
            self._go.acquire()
            if self._is_over:
                raise _Closed
        if self.quantized is not None:
            args, kwargs = tree_map(self._quantized, (args, kwargs))
        return func(*args, **(kwargs or {}))

    def _named(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and self.quantized is not None:
            name, parameter = self.find(value) or ("", None)
            if parameter is not None:
                return _View(name, parameter, value)
        return value

    def _quantized(self, value: Any) -> Any:
        if isinstance(value, _View) and self.quantized is not None:
            return value.quantized(self.quantized)
        return value


class _Closed(BaseException):
    pass


class ModulePairs:
    """Answers of PairedModels (asked_model.h). `groups`: the matrices that read each input; `places`: of all tensors of
    the artifact; `run(model, batch)` runs the module."""

    def __init__(self, model: torch.nn.Module, groups: Sequence[Sequence[str]], places: Mapping[str, Matrix],
                 batches: Sequence[Any], run: Callable[[torch.nn.Module, Any], Any]) -> None:  # fmt: skip
        self.model, self.groups, self.places, self.batches, self.run = model, groups, places, batches, run
        self._open = ExitStack()
        self._quantized: QuantizedValues | None = None
        self._passes: list[tuple[_Pass, _Pass]] = []

    def begin(self, known: Mapping[str, numpy.ndarray]) -> None:
        self._open.enter_context(at_rest(self.model))
        parameters = Parameters(self.model)
        self._open.enter_context(parameters.watched())
        self._quantized = quantized = QuantizedValues(parameters, self.places)
        for name, array in known.items():
            quantized.put(name, array)
        for batch in self.batches:
            run = lambda batch=batch: self.run(self.model, batch)  # noqa: E731
            pair = _Pass(run, parameters.find, None), _Pass(run, quantized.find, quantized)
            for one in pair:
                self._open.callback(one.close)
            self._passes.append(pair)

    def collect(self, place: int) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Means (K, K), in float64, of x~ x~^T and of (x - x~) x~^T."""
        assert self._quantized is not None
        leader = self.groups[place][0]
        self._quantized.forget_brought()
        hessian = drift = torch.zeros(())
        count = 0
        for original, quantized in self._passes:
            x, y = original.advance(leader), quantized.advance(leader)
            # Where a router has sent other positions here, rows do not belong together: nothing to make up for.
            difference = x - y if x.shape == y.shape else torch.zeros_like(y)
            sums = (y.T @ y).double(), (difference.T @ y).double()
            if self._quantized.parameters.are_offloaded:
                sums = sums[0].cpu(), sums[1].cpu()
            hessian = hessian.to(sums[0].device) + sums[0]
            drift = drift.to(sums[1].device) + sums[1]
            count += len(y)
        pair = hessian / max(1, count), drift / max(1, count)
        if not all(torch.isfinite(one).all() for one in pair):
            raise FormatError(f"matrix {leader!r} reads a value that is not finite where others are quantized")
        return pair[0].cpu().numpy(), pair[1].cpu().numpy()

    def replace(self, name: str, array: numpy.ndarray) -> None:
        assert self._quantized is not None
        self._quantized.put(name, array)

    def end(self) -> None:
        """Ends all passes, wherever they are. The model is as it was before begin()."""
        self._passes.clear()
        self._quantized = None
        self._open.close()
