"""module_statistics.py: what an error of any weight of a PyTorch module costs, from batches of its input.

Every product of an input with a parameter is observed, wherever the module's code makes it: torch.nn.Linear, layers that
store the weight as (input, output), matrices that are stacked in one parameter (experts, banks), convolutions, heads
that are tied to an embedding. Of each matrix: H = E[x x^T] at its input, and the mean squared gradient of the loss at
each of its outputs; of each embedding how often a row was looked up, and the same gradient there.

P = positions, R = outputs, K = inputs of a matrix
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ._safetensors import write_safetensors
from .errors import UsageError

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]

_CONVOLUTIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_PRODUCTS = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm)
_SUMS_OF_PRODUCTS = (torch.addmm, torch.Tensor.addmm)


def next_token_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Negative log-likelihood in nats of each next token, summed over a batch of token ids (sequences, length). The
    model gives logits (sequences, length, vocabulary), or what has them as `logits` or in its first place."""
    given = model(**batch) if isinstance(batch, dict) else model(batch)
    logits = getattr(given, "logits", given)
    logits = logits[0] if isinstance(logits, tuple) else logits
    tokens = batch["input_ids"] if isinstance(batch, dict) else batch
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="sum")


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


@dataclass
class _Sums:
    count: int = 0
    hessian: torch.Tensor | None = None  # (K, K), sum of x x^T
    shares: str | None = None  # the matrix whose Hessian this one's is
    squares: torch.Tensor | None = None  # (R), sum of squared gradients
    outputs: int = 0


@dataclass
class _Table:
    counts: torch.Tensor  # (rows)
    squares: torch.Tensor | None = None  # (width)
    lookups: int = 0


@dataclass
class Statistics:
    """What collect() has gathered. `matrices`: those that were seen, by name."""

    matrices: dict[str, Matrix] = field(default_factory=dict)
    sums: dict[str, _Sums] = field(default_factory=dict)
    tables: dict[str, _Table] = field(default_factory=dict)
    tokens: int = 0
    sequences: int = 0

    def write(self, path: str | os.PathLike[str]) -> None:
        """As a file for `thimble quantize --hessians FILE --fisher` (docs/reference/hessian_files.md)."""
        tensors: dict[str, torch.Tensor] = {}
        shared: dict[str, str] = {}
        tied = {name for name in self.sums if name in self.tables}
        for name, sums in self.sums.items():
            if sums.squares is not None:
                tensors[f"output_fisher/{name}"] = (sums.squares / max(1, sums.outputs)).float()
            if name not in tied and sums.shares is not None and sums.shares not in tied:
                shared[name] = sums.shares
            elif name not in tied or len(tied) == 1:
                source = self.sums[sums.shares or name]
                prefix = "head_hessian/" if name in tied else ""
                tensors[prefix + name] = (source.hessian / source.count).float()
        for name, table in self.tables.items():
            tensors[f"row_counts/{name}"] = table.counts
            if table.squares is not None:
                tensors[f"lookup_fisher/{name}"] = (table.squares / max(1, table.lookups)).float()
        metadata = {"tokens": str(max(1, self.tokens)), "sequences": str(max(1, self.sequences))}
        write_safetensors(path, tensors, metadata | {"shared": json.dumps(shared)})


class _Observer(TorchFunctionMode):
    def __init__(self, model: torch.nn.Module, statistics: Statistics, fisher: bool) -> None:
        super().__init__()
        self.statistics, self.fisher = statistics, fisher
        self.parameters = {
            parameter.untyped_storage().data_ptr(): (name, parameter) for name, parameter in model.named_parameters()
        }
        self.last: tuple[torch.Tensor, int, str] | None = None  # input, its version, the matrix that read it

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is functional.linear:
            return self._seen(args[0], self._matrix(args[1], False), result)
        if func in _PRODUCTS and args[1].dim() == 2:
            return self._seen(args[0], self._matrix(args[1], True), result)
        if func in _SUMS_OF_PRODUCTS:
            return self._seen(args[1], self._matrix(args[2], True), result)
        if func in _CONVOLUTIONS:
            return self._convolved(_CONVOLUTIONS[func], result, *args, **(kwargs or {}))
        if func is functional.embedding:
            return self._looked_up(args[0], args[1], result)
        return result

    def _matrix(self, weight: torch.Tensor, is_input_first: bool) -> Matrix | None:
        """Which matrix a product with `weight`, (R, K) or, with is_input_first, (K, R), reads. None: no parameter's."""
        name, parameter = self.parameters.get(weight.untyped_storage().data_ptr(), ("", None))
        if parameter is None or weight.dim() != 2 or parameter.dim() not in (2, 3) or not parameter.is_contiguous():
            return None
        rows, columns = parameter.shape[-2:]
        is_turned = weight.stride() == (1, columns) and weight.shape == (columns, rows)
        if not is_turned and (weight.shape != (rows, columns) or not weight.is_contiguous()):
            return None
        if parameter.dim() == 2:
            return Matrix(name, name, None, is_turned != is_input_first)
        part, rest = divmod(weight.storage_offset() - parameter.storage_offset(), rows * columns)
        return None if rest else Matrix(f"{name}.{part}", name, part, is_turned != is_input_first)

    def _seen(self, x: torch.Tensor, matrix: Matrix | None, out: torch.Tensor, axis: int = -1) -> torch.Tensor:
        """Adds an input (..., K) whose product with the matrix is `out`, which has its R outputs along `axis`; returns
        `out` for the code that goes on."""
        if matrix is None or x.numel() == 0:
            return out
        self.statistics.matrices[matrix.name] = matrix
        sums = self.statistics.sums.setdefault(matrix.name, _Sums())
        if self.last is not None and self.last[0] is x and self.last[1] == x._version and self.last[2] != matrix.name:
            if sums.hessian is None:
                sums.shares = self.last[2]
        else:
            self.last = (x, x._version, matrix.name)
        if sums.shares is None:
            with torch.no_grad():
                rows = x.detach().reshape(-1, x.shape[-1]).float()
                product = (rows.T @ rows).double()
                sums.hessian = product if sums.hessian is None else sums.hessian.add_(product)
                sums.count += len(rows)
        return self._graded(out, axis, lambda squares, count: _add_squares(sums, squares, count))

    def _graded(self, out: torch.Tensor, axis: int, add: Callable[[torch.Tensor, int], None]) -> torch.Tensor:
        """`out`, of which `add` gets the squared gradients summed over all axes but that of the outputs."""
        if not self.fisher or not out.is_floating_point():
            return out
        if not out.requires_grad:  # a leaf that later code may not change in place, so a copy of it
            out = out.detach().requires_grad_().clone()

        def squared(gradient: torch.Tensor) -> None:
            gradient = gradient.detach().float().movedim(axis, -1)
            rows = gradient.reshape(-1, gradient.shape[-1])
            add(rows.square().sum(0).double(), len(rows))

        out.register_hook(squared)
        return out

    def _convolved(self, dimensions: int, out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: Any = None,
                   stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> torch.Tensor:  # fmt: skip
        name, parameter = self.parameters.get(weight.untyped_storage().data_ptr(), ("", None))
        if parameter is None or weight.shape != parameter.shape or groups != 1 or isinstance(padding, str):
            return out
        lists = [[v] * dimensions if isinstance(v, int) else list(v) for v in (stride, padding, dilation)]
        padded = functional.pad(x.detach(), [p for p in reversed(lists[1]) for _ in (0, 1)])
        padded = padded if weight.dim() == x.dim() else padded[None]
        for axis, (size, step, gap) in enumerate(zip(weight.shape[2:], lists[0], lists[2], strict=True)):
            padded = padded.unfold(2 + axis, (size - 1) * gap + 1, step)[..., ::gap]
        # (batch, channels, positions ..., kernel ...) to (all positions, channels * kernel)
        order = [0, *range(2, 2 + dimensions), 1, *range(2 + dimensions, 2 + 2 * dimensions)]
        patches = padded.permute(order).reshape(-1, weight[0].numel())
        return self._seen(patches, Matrix(name, name), out, 1)

    def _looked_up(self, rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        name, parameter = self.parameters.get(weight.untyped_storage().data_ptr(), ("", None))
        if parameter is None or weight.shape != parameter.shape:
            return out
        counts = torch.bincount(rows.flatten(), minlength=len(weight)).cpu()
        table = self.statistics.tables.get(name)
        if table is None:
            self.statistics.tables[name] = table = _Table(torch.zeros(len(weight), dtype=torch.int64))
        table.counts += counts

        def add(squares: torch.Tensor, count: int) -> None:
            table.squares = squares if table.squares is None else table.squares + squares
            table.lookups += count

        return self._graded(out, -1, add)


def _add_squares(sums: _Sums, squares: torch.Tensor, count: int) -> None:
    sums.squares = squares if sums.squares is None else sums.squares + squares
    sums.outputs += count


def _observed(batches: Iterable[Any], progress: bool) -> Iterator[Any]:
    if progress:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            pass
        else:
            batches = tqdm(batches, desc="collecting statistics", unit="batch")
    yield from batches


def gather(
    model: torch.nn.Module, batches: Iterable[Any], loss: Loss | None = None, fisher: bool = True, progress: bool = True
) -> Statistics:
    """Runs every batch through the model, and back from the loss where `fisher` is set. The model is in evaluation mode
    meanwhile, none of its parameters gets a gradient, and it is left as it was."""
    statistics = Statistics()
    observer = _Observer(model, statistics, fisher)
    loss = next_token_loss if loss is None else loss
    was_training = model.training
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    experts = getattr(getattr(model, "config", None), "_experts_implementation", None)
    try:
        model.eval()
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        if experts is not None:  # one product for each expert, not one for all of them
            model.config._experts_implementation = "eager"
        for batch in _observed(batches, progress):
            tokens = batch["input_ids"] if isinstance(batch, dict) else batch
            with torch.set_grad_enabled(fisher), observer:
                value = loss(model, batch)
            if fisher:
                value.backward()
            observer.last = None
            statistics.sequences += len(tokens)
            statistics.tokens += tokens.numel() if tokens.dim() < 3 else len(tokens)
    finally:
        model.train(was_training)
        for parameter, needed in wanted:
            parameter.requires_grad_(needed)
        if experts is not None:
            model.config._experts_implementation = experts
    if statistics.sequences == 0:
        raise UsageError("batches: there is none, at least one is needed")
    return statistics


def collect(
    model: torch.nn.Module,
    batches: Iterable[Any],
    path: str | os.PathLike[str],
    loss: Loss | None = None,
    fisher: bool = True,
    progress: bool = True,
) -> Statistics:
    """Statistics of `model` on `batches`, written to `path` for `thimble quantize --hessians`, whose checkpoint must
    have the matrices as they are named here. `batches`: token ids (sequences, length) without padding, dicts of
    arguments with "input_ids", or whatever `loss(model, batch)` takes, which gives a sum over the batch in nats."""
    statistics = gather(model, batches, loss, fisher, progress)
    statistics.write(path)
    return statistics
