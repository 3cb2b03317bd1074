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
from .module_parameters import Matrix, Parameters, Product, at_rest, product_of

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]


def next_token_logits(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Logits (sequences, length - 1, vocabulary) of each next token of a batch of token ids (sequences, length), or of a
    dict of arguments with "input_ids". The model gives those of all positions, or what has them as `logits` or in its
    first place."""
    given = model(**batch) if isinstance(batch, dict) else model(batch)
    logits = getattr(given, "logits", given)
    return (logits[0] if isinstance(logits, tuple) else logits)[:, :-1]


def next_token_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """Negative log-likelihood in nats of each next token, summed over the batch, which is that of next_token_logits()."""
    logits = next_token_logits(model, batch)
    return functional.cross_entropy(logits.flatten(0, 1).float(), first_of(batch)[:, 1:].flatten(), reduction="sum")


def first_of(batch: Any) -> Any:
    """Of a batch, the tensor whose first dimension counts its sequences."""
    return batch["input_ids"] if isinstance(batch, dict) else batch


@dataclass
class _Sums:
    count: int = 0
    hessian: torch.Tensor | None = None  # (K, K), sum of x x^T
    shares: str | None = None  # the matrix whose Hessian this one's is
    squares: torch.Tensor | None = None  # (R), sum of squared gradients
    is_steady: bool = True  # each batch reads it once, at as many inputs for each position
    inputs_per_position: int | None = None


@dataclass
class _Table:
    counts: torch.Tensor  # (rows)
    squares: torch.Tensor | None = None  # (width)


@dataclass
class Statistics:
    """What collect() has gathered. `matrices`: those that were seen, by name."""

    matrices: dict[str, Matrix] = field(default_factory=dict)
    sums: dict[str, _Sums] = field(default_factory=dict)
    tables: dict[str, _Table] = field(default_factory=dict)
    tokens: int = 0
    sequences: int = 0

    def inputs(self) -> list[list[str]]:
        """The matrices that read each input, in the order in which the model runs, for cross terms: without those that
        some batches read at other positions than others (experts), or twice, tables, and the head, which is read last."""
        groups: dict[str, list[str]] = {}
        last = next(reversed(self.matrices), None)
        for name in self.matrices:
            sums = self.sums[name]
            if name != last and name not in self.tables and sums.is_steady:
                groups.setdefault(sums.shares or name, []).append(name)
        return [names for leader, names in groups.items() if names[0] == leader]

    def write(self, path: str | os.PathLike[str]) -> None:
        """As a file for `thimble quantize --hessians FILE --fisher` (docs/reference/hessian_files.md). Squared gradients
        are means over tokens, whether a matrix is read at each of them, at some (experts), or once for a whole batch
        (positions, whose gradients are sums over its sequences)."""
        tensors: dict[str, torch.Tensor] = {}
        shared: dict[str, str] = {}
        tied = {name for name in self.sums if name in self.tables}
        for name, sums in self.sums.items():
            if sums.squares is not None:
                tensors[f"output_fisher/{name}"] = (sums.squares / max(1, self.tokens)).float()
            if name not in tied and sums.shares is not None and sums.shares not in tied:
                shared[name] = sums.shares
            elif name not in tied or len(tied) == 1:
                source = self.sums[sums.shares or name]
                prefix = "head_hessian/" if name in tied else ""
                tensors[prefix + name] = (source.hessian / source.count).float()
        for name, table in self.tables.items():
            tensors[f"row_counts/{name}"] = table.counts
            if table.squares is not None:
                tensors[f"lookup_fisher/{name}"] = (table.squares / max(1, self.tokens)).float()
        metadata = {"tokens": str(max(1, self.tokens)), "sequences": str(max(1, self.sequences))}
        write_safetensors(path, tensors, metadata | {"shared": json.dumps(shared)})


class _Observer(TorchFunctionMode):
    def __init__(self, parameters: Parameters, statistics: Statistics, fisher: bool) -> None:
        super().__init__()
        self.parameters, self.statistics, self.fisher = parameters, statistics, fisher
        self.last: tuple[torch.Tensor, int, str] | None = None  # input, its version, the matrix that read it
        self.reads: dict[str, list[int]] = {}  # of this batch: how many inputs each product has had

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = product_of(func, args, kwargs, self.parameters.find)
        result = func(*args, **(kwargs or {}))
        if product is not None and product.input.numel():
            return self._seen(product, args, result)
        if func is functional.embedding:
            return self._looked_up(args[0], args[1], result)
        return result

    def end_batch(self, positions: int) -> None:
        """After each batch: its matrices are steady where they were read as in the others."""
        self.last = None
        for name in self.statistics.matrices:
            sums, reads = self.statistics.sums[name], self.reads.get(name, [])
            each, rest = divmod(sum(reads), max(1, positions))
            if len(reads) != 1 or rest or each < 1 or sums.inputs_per_position not in (None, each):
                sums.is_steady = False
            sums.inputs_per_position = each
        self.reads.clear()

    def _seen(self, product: Product, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Adds the input of a product, which gave `out`; returns that for the code that goes on."""
        matrix, x = product.matrix, product.input
        if matrix.name not in self.statistics.matrices and self.statistics.sequences:
            self.statistics.sums[matrix.name] = _Sums(is_steady=False)  # the first batches did not read it
        self.statistics.matrices[matrix.name] = matrix
        sums = self.statistics.sums.setdefault(matrix.name, _Sums())
        self.reads.setdefault(matrix.name, []).append(x.numel() // x.shape[-1])
        if self.last is not None and self.last[0] is x and self.last[1] == x._version and self.last[2] != matrix.name:
            if sums.hessian is None:
                sums.shares = self.last[2]
        else:
            self.last = (x, x._version, matrix.name)
        if sums.shares is None:
            with torch.no_grad():
                rows = x.detach().reshape(-1, x.shape[-1]).float()
                square = rows.T @ rows
                square = (square.cpu() if self.parameters.are_offloaded else square).double()
                sums.hessian = square if sums.hessian is None else sums.hessian.add_(square)
                sums.count += len(rows)
        return self._graded(out, product.axis, sums)

    def _graded(self, out: torch.Tensor, axis: int, sums: _Sums | _Table) -> torch.Tensor:
        """`out`, whose squared gradients, summed over all axes but that of the outputs, `sums` gets."""
        if not self.fisher or not out.is_floating_point():
            return out
        if not out.requires_grad:  # a leaf that later code may not change in place, so a copy of it
            out = out.detach().requires_grad_().clone()

        def squared(gradient: torch.Tensor) -> None:
            gradient = gradient.detach().float().movedim(axis, -1)
            squares = gradient.reshape(-1, gradient.shape[-1]).square().sum(0).double()
            sums.squares = squares if sums.squares is None else sums.squares + squares

        out.register_hook(squared)
        return out

    def _looked_up(self, rows: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        name, parameter = self.parameters.find(weight) or ("", None)
        if parameter is None or weight.shape != parameter.shape:
            return out
        counts = torch.bincount(rows.flatten(), minlength=len(weight)).cpu()
        table = self.statistics.tables.get(name)
        if table is None:
            self.statistics.tables[name] = table = _Table(torch.zeros(len(weight), dtype=torch.int64))
        table.counts += counts
        return self._graded(out, -1, table)


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
    meanwhile, none of its parameters gets a gradient, and it is left as it was. Of a model whose parameters are brought
    while it runs, sums are in host memory."""
    statistics = Statistics()
    parameters = Parameters(model)
    observer = _Observer(parameters, statistics, fisher)
    loss = next_token_loss if loss is None else loss
    with at_rest(model), parameters.watched():
        for batch in _observed(batches, progress):
            tokens = first_of(batch)
            with torch.set_grad_enabled(fisher), parameters.kept_where_they_are(), observer:
                value = loss(model, batch)
            if fisher:
                value.backward()
            positions = tokens.numel() if tokens.dim() < 3 else len(tokens)
            observer.end_batch(positions)
            statistics.sequences += len(tokens)
            statistics.tokens += positions
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
