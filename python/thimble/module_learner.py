"""module_learner.py: learns the codes of a PyTorch module's matrices, or tunes gains of their rows with the codes as they
are, and its small tensors beside them, by the gradient of the divergence from the original, KL(original || quantized).

What gptq/slope/code_learner.h says of learning holds here: latents, real numbers of levels; codes of the trellis path
that is nearest to them, which thimble finds, every PATHS_EVERY steps; gradients that pass as if there were no rounding;
Adam without momentum. Steps stay as they are. And of gains what gptq/slope/gain_tuner.h says.

R = outputs, K = inputs of a matrix
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn import functional

from . import _thimble
from .module_parameters import Matrix, Parameters, at_rest
from .module_statistics import first_of

Predict = Callable[[torch.nn.Module, Any], torch.Tensor]
Stepped = tuple[numpy.ndarray, numpy.ndarray, numpy.ndarray, int]  # levels (R, K), row and column steps, trellis bits

PATHS_EVERY = 4  # steps: what these move is far less than a level
# So many looks in a row so many times as far as the nearest, and learning ends: while steps are long a model gets farther
# that comes nearer than before once they are short.
PATIENCE, FAR = 8, 2
KEPT_EVERY = 4 * PATHS_EVERY  # steps from one look at the batches held out to the next
WARM_UP = 0.1  # share of the steps
SMALL_RATE = 4e-3  # what a step moves a small tensor, relative to its size
GAIN_RATE = 4e-3  # what a step moves the logarithm of a gain
QUIET_CODES, QUIET_SMALL = 0.03, 0.5  # see adam_step()
HELD_OUT_SHARE, MOST_HELD_OUT = 8, 4


@dataclass(frozen=True)
class LearnOptions:
    """`batch`: sequences of a step, at least a whole batch; `rate`: how many levels a step moves a weight, at most about;
    it rises over the first tenth of the steps, then falls along a cosine. `rows`: gains of rows are learned too."""

    steps: int
    batch: int = 8
    rate: float = 0.02
    rows: bool = False


@dataclass(frozen=True)
class DistillOptions:
    """`batch`: sequences of a step, at least a whole batch. Rates fall along a cosine."""

    steps: int = 32
    batch: int = 8


def held_out_count(batches: int) -> int:
    """Batches, the last ones, that nothing is learned from."""
    return min(max(batches // HELD_OUT_SHARE, 1), MOST_HELD_OUT)


def rate_share(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2


def adam_step(number: int, rate: float, quiet: float, value: torch.Tensor, gradient: torch.Tensor,
              second: torch.Tensor, first: torch.Tensor | None = None) -> None:  # fmt: skip
    """Step `number`, from 1, in place. Elements whose gradients are far below their tensor's move in proportion to them
    (gptq/slope/adam.h): value -= rate m / (sqrt(v) + quiet rms(v)). Without `first` there is no momentum."""
    second.lerp_(gradient.square(), 0.05)
    root = second / (1 - 0.95**number)
    mean = root.mean().sqrt()
    if mean == 0:
        return
    if first is not None:
        first.lerp_(gradient, 0.1)
        gradient = first / (1 - 0.9**number)
    value.sub_(rate * gradient / (root.sqrt_() + quiet * mean))


class _Through(torch.autograd.Function):
    """Weights (R, K) of levels; gradients pass to the latents that the levels stand for as if these were them."""

    @staticmethod
    def forward(ctx: Any, latents: torch.Tensor, levels: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> Any:
        ctx.save_for_backward(rows, columns)
        return levels * rows[:, None] * columns

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
        rows, columns = ctx.saved_tensors
        return gradient.float() * rows[:, None] * columns, None, None, None


class _Tuned:
    """Values that a step of Adam moves by about `rate`."""

    def __init__(self, value: torch.Tensor, rate: float) -> None:
        self.value, self.rate = value.double().requires_grad_(), rate
        self.first, self.second = torch.zeros_like(self.value), torch.zeros_like(self.value)

    def step(self, number: int, share: float) -> None:
        with torch.no_grad():
            adam_step(number, share * self.rate, QUIET_SMALL, self.value, self.value.grad, self.second, self.first)
        self.value.grad = None

    def learned(self) -> list[torch.Tensor]:
        return [self.value]

    def state(self) -> list[torch.Tensor]:
        return [self.value, self.first, self.second]


class _Gains(_Tuned):
    """Of so many rows, or of all of them together: logarithms."""

    def __init__(self, count: int, device: torch.device) -> None:
        super().__init__(torch.zeros(count, device=device), GAIN_RATE)

    def factors(self) -> torch.Tensor:
        return self.value.exp().float()


class _TunedMatrix(_Gains):
    """A matrix with the codes that it has, and gains of its rows, or one of the whole of it."""

    def __init__(self, stepped: Stepped, device: torch.device, are_of_rows: bool) -> None:
        levels, rows, columns, _ = (torch.tensor(a, device=device) for a in stepped)
        super().__init__(len(rows) if are_of_rows else 1, device)
        self.solved = levels * rows[:, None] * columns

    def weights(self) -> torch.Tensor:
        return self.solved * self.factors()[:, None]

    def of_rows(self) -> torch.Tensor:
        return self.factors().detach().cpu().expand(len(self.solved)).contiguous()


class _Latents:
    """Of one matrix: latents, their levels, and moments; with `has_gains` gains of its rows too."""

    def __init__(self, stepped: Stepped, device: torch.device, rate: float, bit_price: float,
                 has_gains: bool = False) -> None:  # fmt: skip
        levels, rows, columns, self.trellis_bits = stepped
        self.deviations = [torch.tensor(one, device=device) for one in _thimble.level_scales(levels)]  # (R), (K)
        self.rate, self.bit_price = rate, bit_price
        self.levels, self.rows, self.columns = (torch.tensor(a, device=device) for a in (levels, rows, columns))
        self.latents = self.levels.clone().requires_grad_()
        self.second = torch.zeros_like(self.levels)
        self.gains = _Gains(len(rows), device) if has_gains else None

    def weights(self) -> torch.Tensor:
        weights = _Through.apply(self.latents, self.levels, self.rows, self.columns)
        return weights if self.gains is None else weights * self.gains.factors()[:, None]

    def find_path(self) -> None:
        latents = self.latents.detach().cpu().numpy()
        levels = torch.from_dlpack(_thimble.nearest_levels(latents, self.trellis_bits))
        self.levels.copy_(levels)

    def step(self, number: int, share: float) -> None:
        with torch.no_grad():
            # What bits cost, by the latent: bits_by_level() of gptq/slope/code_learner.h.
            variance = (self.deviations[0][:, None] * self.deviations[1]).square_().clamp_(min=1 / 3)
            gradient = self.latents.grad + self.bit_price / math.log(2) * self.latents / variance
            adam_step(number, share * self.rate, QUIET_CODES, self.latents, gradient, self.second)
        self.latents.grad = None
        if self.gains is not None:
            self.gains.step(number, share)

    def learned(self) -> list[torch.Tensor]:
        return [self.latents, *(self.gains.learned() if self.gains else [])]

    def state(self) -> list[torch.Tensor]:
        return [self.latents, self.second, *(self.gains.state() if self.gains else [])]


class _Small(_Tuned):
    """A tensor that is stored without codes."""

    def __init__(self, name: str, array: numpy.ndarray, device: torch.device) -> None:
        value = torch.from_numpy(array).to(device).double()
        root_mean_square = value.square().mean().sqrt().item() if array.size else 0.0
        # Gates stand before a sigmoid, where 1 is the natural unit.
        super().__init__(value, SMALL_RATE * (1.0 if name.endswith(("gate", "gates")) else root_mean_square))


class _Predicting(torch.nn.Module):
    """What gives predictions, as a module of its own: its parameters can be stood in for."""

    def __init__(self, model: torch.nn.Module, predict: Predict) -> None:
        super().__init__()
        self.model, self.predict = model, predict

    def forward(self, batch: Any) -> torch.Tensor:
        return self.predict(self.model, batch)


class ModuleLearner:
    """Answers of Teacher (asked_model.h). `places`: of all tensors of the artifact, by name; `predict(model, batch)` gives
    logits, of classes along the last dimension. Matrices of `row_layers` get gains of rows, others one of the whole.
    `folder` holds what stands between two steps, for the same model, batches and options, which `key` is a hash of."""

    def __init__(self, model: torch.nn.Module, places: Mapping[str, Matrix], batches: Sequence[Any], predict: Predict,
                 options: LearnOptions, distilling: DistillOptions, row_layers: Collection[str], folder: Path, key: str,
                 progress: bool) -> None:  # fmt: skip
        self.model, self.places, self.options, self.progress = model, places, options, progress
        self.distilling, self.row_layers = distilling, set(row_layers)
        count = len(batches) - held_out_count(len(batches))
        self.learned, self.held_out = batches[:count], batches[count:]
        self.predicting = _Predicting(model, predict)
        self.parameters = Parameters(model)
        self.originals = dict(self.parameters.state())
        self.folder, self.key = folder, key

    def divergence(self, tensors: Mapping[str, numpy.ndarray]) -> float:
        """Mean KL in nats for each prediction on the batches held out."""
        pieces = {name: torch.from_numpy(array) for name, array in tensors.items()}
        with at_rest(self.model):
            return self._held_out_divergence(self._parameter_values(pieces))

    def learn(self, others: Mapping[str, numpy.ndarray], small: Mapping[str, numpy.ndarray],
              stepped: Mapping[str, Stepped], bit_price: float) -> tuple[Any, ...]:  # fmt: skip
        """From tensors with other codes, which stay, without codes, and with steps, while a bit of these costs so many
        nats per token. Returns latents, gains of rows and small tensors as float32, by name: those that are nearest to
        the original on the batches held out; steps, sequences, and how many of these are held out."""
        self._matrices = {name: _Latents(one, self._device(name), self.options.rate, bit_price,
                                         self.options.rows and name in self.row_layers)
                          for name, one in stepped.items()}  # fmt: skip
        self._begin(others, small)
        with at_rest(self.model):
            self._run(self._key((self.options, bit_price), stepped))
        best = [{name: one.float().numpy() for name, one in values.items()} for values in self._best]
        self._end()
        return *best, self.options.steps, *self._given()

    def distill(self, others: Mapping[str, numpy.ndarray], small: Mapping[str, numpy.ndarray],
                stepped: Mapping[str, Stepped]) -> tuple[Any, ...]:  # fmt: skip
        """Of the same: gains of rows and small tensors after all steps, by name; steps and sequences likewise."""
        self._matrices = {name: _TunedMatrix(one, self._device(name), name in self.row_layers)
                          for name, one in stepped.items()}  # fmt: skip
        self._begin(others, small)
        key, steps = self._key(self.distilling, stepped), self.distilling.steps
        done, next_batch = self._load("gains.pt", key) or (0, 0)
        with at_rest(self.model), _bar(self.progress, "tuning gains", steps, done) as show:
            while done < steps:
                next_batch = self._gradients(next_batch, self.distilling.batch)
                share, done = (1 + math.cos(math.pi * done / steps)) / 2, done + 1
                for one in (*self._matrices.values(), *self._small.values()):
                    one.step(done, share)
                if done % KEPT_EVERY == 0 or done == steps:
                    self._keep("gains.pt", key, (done, next_batch))
                show(1, None)
        gains = {name: one.of_rows().numpy() for name, one in self._matrices.items()}
        values = {name: one.value.detach().float().cpu().numpy() for name, one in self._small.items()}
        self._end()
        return gains, values, steps, *self._given()

    def _begin(self, others: Mapping[str, numpy.ndarray], small: Mapping[str, numpy.ndarray]) -> None:
        own = {name for name, _ in self.model.named_parameters()}
        self._small = {name: _Small(name, array, self._device(name)) for name, array in small.items()
                       if self.places[name].parameter in own}  # fmt: skip
        self._fixed = {name: torch.from_numpy(array) for name, array in others.items()}

    def _end(self) -> None:
        self._matrices, self._small, self._fixed = {}, {}, {}

    def _device(self, name: str) -> torch.device:
        return self.originals[self.places[name].parameter].device

    def _key(self, options: object, stepped: Mapping[str, Stepped]) -> str:
        """Hash of what the steps from these codes on depend on."""
        digest = hashlib.blake2b(repr((self.key, options)).encode(), digest_size=16)
        for name, (levels, *_) in sorted(stepped.items()):
            digest.update(name.encode() + levels.tobytes())
        return digest.hexdigest()

    def _given(self) -> tuple[int, int]:
        """How many sequences are learned from, and how many held out."""
        learned, held_out = (sum(len(first_of(batch)) for batch in batches) for batches in (self.learned, self.held_out))
        return learned, held_out

    def _run(self, key: str) -> None:
        steps, done, next_batch, far_looks = self.options.steps, 0, 0, 0
        found = self._load("learning.pt", key)
        if found is None:
            self._best, best = self._snapshot(), self._look()
        else:
            done, next_batch, far_looks, best, self._best = found
            self._find_paths()
        with _bar(self.progress, "learning codes", steps, done) as show:
            while done < steps and far_looks < PATIENCE:
                if done and done % PATHS_EVERY == 0:
                    self._find_paths()
                next_batch = self._gradients(next_batch, self.options.batch)
                share, done = rate_share(done, steps), done + 1
                for one in (*self._matrices.values(), *self._small.values()):
                    one.step(done, share)
                show(1, best)
                if done % KEPT_EVERY == 0 or done == steps:
                    self._find_paths()
                    now = self._look()
                    far_looks = 0 if now < FAR * best else far_looks + 1
                    if now < best:
                        best, self._best = now, self._snapshot()
                    self._keep("learning.pt", key, (done, next_batch, far_looks, best, self._best))
                    show(0, best)

    def _gradients(self, first: int, sequences: int) -> int:
        """Of the mean divergence over the next step's batches, the first of which is `first`; returns the one after."""
        count = max(1, round(sequences / max(1, len(first_of(self.learned[first])))))
        chosen = self.learned[first : first + count]
        predictions = 0
        for batch in chosen:
            divergence, number = self._divergence(batch, self._student())
            divergence.backward()
            predictions += number
        for one in (*self._matrices.values(), *self._small.values()):
            for value in one.learned():
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad / predictions
        return (first + len(chosen)) % len(self.learned)

    def _divergence(self, batch: Any, student: dict[str, torch.Tensor]) -> tuple[torch.Tensor, int]:
        """Sum over the predictions of a batch, and their number."""
        with torch.no_grad():
            original = functional.log_softmax(self.predicting(batch).float(), -1)
        quantized = functional.log_softmax(torch.func.functional_call(self.predicting, student, (batch,)).float(), -1)
        divergence = functional.kl_div(quantized, original, reduction="sum", log_target=True)
        return divergence, original[..., 0].numel()

    def _held_out_divergence(self, student: dict[str, torch.Tensor]) -> float:
        with torch.no_grad():
            found = [self._divergence(batch, student) for batch in self.held_out]
        return sum(divergence.item() for divergence, _ in found) / sum(number for _, number in found)

    def _student(self) -> dict[str, torch.Tensor]:
        pieces = {name: one.weights() for name, one in self._matrices.items()}
        return self._parameter_values(self._fixed | {name: one.value for name, one in self._small.items()} | pieces)

    def _look(self) -> float:
        with torch.no_grad():
            return self._held_out_divergence(self._student())

    def _parameter_values(self, pieces: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Of _Predicting, of the tensors of an artifact."""
        parts: dict[str, dict[int, torch.Tensor]] = {}
        values: dict[str, torch.Tensor] = {}
        for name, piece in pieces.items():
            place = self.places[name]
            original = self.originals.get(place.parameter)
            if original is None or not original.is_floating_point():
                continue
            piece = piece.to(original.device, original.dtype)
            if piece.dim() == 2:
                piece = place.stored(piece, original.shape)
            if place.part is None:
                values[f"model.{place.parameter}"] = piece
            else:
                parts.setdefault(place.parameter, {})[place.part] = piece
        for parameter, by_part in parts.items():
            values[f"model.{parameter}"] = torch.stack([by_part[part] for part in sorted(by_part)])
        return values

    def _find_paths(self) -> None:
        for one in self._matrices.values():
            one.find_path()

    def _snapshot(self) -> tuple[dict[str, torch.Tensor], ...]:
        """Latents, gains of rows, small tensors."""
        gains = {name: one.gains for name, one in self._matrices.items() if one.gains is not None}
        return ({name: one.latents.detach().cpu().clone() for name, one in self._matrices.items()},
                {name: one.factors().detach().cpu().clone() for name, one in gains.items()},
                {name: one.value.detach().cpu().clone() for name, one in self._small.items()})  # fmt: skip

    def _states(self) -> Iterator[torch.Tensor]:
        for one in (*self._matrices.values(), *self._small.values()):
            yield from one.state()

    def _keep(self, name: str, key: str, where: tuple[Any, ...]) -> None:
        file = self.folder / name
        temporary = file.with_suffix(".part")
        torch.save({"key": key, "where": where, "states": [state.detach().cpu() for state in self._states()]}, temporary)
        os.replace(temporary, file)

    def _load(self, name: str, key: str) -> tuple[Any, ...] | None:
        """Where the steps were, if they were the same."""
        file = self.folder / name
        if not file.exists():
            return None
        try:
            kept = torch.load(file, weights_only=True)
        except Exception:  # cut off, or another's: learned anew
            return None
        if kept["key"] != key:
            return None
        with torch.no_grad():
            for state, value in zip(self._states(), kept["states"], strict=True):
                state.copy_(value)
        return tuple(kept["where"])


@contextmanager
def _bar(progress: bool, what: str, steps: int, done: int) -> Iterator[Callable[[int, float | None], None]]:
    """Shows steps, and the least divergence so far where there is one."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        progress = False
    if not progress:
        yield lambda step, best: None
        return
    with tqdm(total=steps, initial=done, desc=what, unit="step") as bar:

        def show(step: int, best: float | None) -> None:
            if best is not None:
                bar.set_postfix(KL=f"{best:.5f}", refresh=False)
            bar.update(step)

        yield show
