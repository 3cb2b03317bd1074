"""module_quantizer.py: any PyTorch module into an artifact under a budget: statistics by module_statistics.py, solved,
searched and coded by the program's own method slope, in a process of its own that an interrupt ends and a later call goes
on with. What takes the model, that process asks of this one: cross terms (module_pairs.py), learning (module_learner.py).
"""

from __future__ import annotations

import hashlib
import html
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import torch

from . import _thimble
from ._safetensors import write_safetensors
from .artifact import LAYOUT_KEY, Artifact, state_dict
from .errors import FormatError, UsageError, error_of
from .module_learner import DistillOptions, LearnOptions, ModuleLearner, Predict
from .module_pairs import ModulePairs
from .module_parameters import Matrix, Parameters, digest_of
from .module_score import score
from .module_statistics import Loss, Statistics, gather, next_token_logits, next_token_loss

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def bytes_of(size: int | str) -> int:
    """16000000, "16MB", "1.6e7", "600KiB" in bytes, as the command line reads sizes."""
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"([0-9.]+(?:e[0-9]+)?)(K|M|G|Ki|Mi|Gi)?B?", size)
    value = float(found[1]) * _UNITS[found[2] or ""] if found else 0
    if not found or value != int(value):
        raise UsageError(f"budget {size!r} is no size in bytes: 16000000, '16MB', '600KiB'")
    return int(value)


@dataclass(frozen=True)
class Report:
    """What became of a model: `facts` is the JSON of `thimble quantize`. Drawn as a table in notebooks."""

    path: str
    facts: dict[str, Any]

    @property
    def artifact_bytes(self) -> int:
        return self.facts["artifact_bytes"]

    @property
    def bits_per_parameter(self) -> float:
        return self.facts["bits_per_parameter"]

    @property
    def artifact(self) -> Artifact:
        return Artifact(self.path)

    def save_pretrained(self, folder: str | os.PathLike[str], model: Any, tokenizer: Any = None) -> None:
        """Of a model of transformers: a folder that from_pretrained() loads where thimble is imported, with the config
        of `model`, the artifact, a model card, and the tokenizer where one is given."""
        import copy

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.dtype = "bfloat16"
        config.quantization_config = {"quant_method": "thimble", "format_version": self.artifact.format_version}
        config.save_pretrained(folder)
        shutil.copyfile(self.path, folder / "model.thmb")
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        facts = "\n".join(f"| {name} | {value} |" for name, value in self._rows()[1:])
        measured = self.facts.get("evaluation")
        (folder / "README.md").write_text(
            f"---\nlibrary_name: transformers\ntags:\n- thimble\n---\n\n# {folder.name}\n\nThe weights are an artifact, "
            f"`model.thmb`, which is decoded when the model is loaded.\n\n| | |\n|---|---|\n{facts}\n\n"
            + (_how_measured(measured) if measured else "Its loss against the original was not measured here.\n")
        )

    def score(self, model: torch.nn.Module, tokenizer: Any, text: str, context: int | None = None,
              stride: int | None = None) -> dict[str, Any]:  # fmt: skip
        """Measures bits per byte of `text`, which nothing was learned from, with sliding windows of `context` tokens that
        move on by `stride`: of `model`, the original, and of what the artifact decodes to. `tokenizer`: of transformers.
        The result is also in `facts["evaluation"]`, as the program has it, and on the card of save_pretrained()."""
        decoded = state_dict(self.path, device="cpu")
        values = {name: decoded[name].to(value.device, value.dtype) for name, value in model.named_parameters()
                  if name in decoded}  # fmt: skip
        self.facts["evaluation"] = score(model, tokenizer, text, values, context, stride)
        return self.facts["evaluation"]

    def _rows(self) -> list[tuple[str, str]]:
        facts = self.facts
        rows = [("artifact", self.path), ("parameters", f"{facts['parameters']:,}"),
                ("original", f"{facts['original_bytes']:,} B"),
                ("bytes", f"{facts['artifact_bytes']:,} B ({facts['bits_per_parameter']:.3f} bits per parameter)")]
        if facts.get("budget_bytes"):
            rows.append(("budget", f"{facts['budget_bytes']:,} B (fill {100 * facts['fill']:.2f} %)"))
        measured = facts.get("evaluation")
        if measured:
            before, after = (measured[side]["bits_per_byte"] for side in ("before", "after"))
            rows.append(("bits per byte", f"{after:.5f}, of the original {before:.5f}"))
        precisions = ", ".join(f"{name} for {count}" for name, count in facts["precisions"].items())
        rows.append(("precision", precisions))
        for what, tuned in (("learned", facts.get("learn")), ("tuned", facts.get("distill"))):
            if tuned:
                share = f"{100 * tuned['changed_codes']:.2f} % of the codes: " if what == "learned" else ""
                rows.append((
                    what, f"{share}KL {tuned['divergence_before']:.6f} to {tuned['divergence_after']:.6f} nats per "
                    f"prediction on {tuned['held_out']} sequences held out" + ("" if tuned["kept"] else ": not kept")))  # fmt: skip
        rows += [("warning", warning) for warning in facts.get("warnings") or []]
        return rows

    def __repr__(self) -> str:
        return "\n".join(f"{name:<11}{value}" for name, value in self._rows())

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:left'>{html.escape(value)}"
            "</td></tr>"
            for name, value in self._rows()
        )
        bars = "".join(
            f"<tr><td style='text-align:left'>{html.escape(tensor.name)}</td><td>{tensor.bits_per_weight:.2f}</td>"
            f"<td style='text-align:left'><div style='background:#2a78d6;height:0.8em;"
            f"width:{10 * tensor.bits_per_weight:.0f}px'></div></td></tr>"
            for tensor in self.artifact.tensors.values()
            if tensor.stored_as.startswith("trellis")
        )
        return f"<table>{cells}</table><details><summary>Bits per weight</summary><table>{bars}</table></details>"


def _how_measured(evaluation: dict[str, Any]) -> str:
    after = evaluation["after"]
    return (
        f"The gap in bits per byte is {evaluation['gap_bits_per_byte']:+.6f}. Measured with sliding windows, "
        f"each byte of the text counted once: {after['targets']:,} targets, "
        f"{after['text_bytes']:,} bytes of text, context {after['context']}, stride {after['stride']}. What is scored is "
        "the model decoded from the artifact.\n"
    )


class _Checkpoint(Mapping[str, torch.Tensor]):
    """The tensors that are quantized, by name; each is read, where the model has it, when it is asked for."""

    def __init__(self, parameters: Parameters, matrices: Mapping[str, Matrix], keeps_layout: bool) -> None:
        self.parameters = parameters
        self.state = parameters.state()
        self.is_own = keeps_layout  # the model's own checkpoint
        # Where in the model each lies, the solvers' matrices as (R, K); and how parameters are made of the artifact's.
        self.places: dict[str, Matrix] = {}
        self.layout: dict[str, Any] = {}
        by_parameter = {matrix.parameter: matrix for matrix in matrices.values()}
        for name, value in self.state.items():
            seen = by_parameter.get(name)
            if seen is None or keeps_layout:
                self.places[name] = matrices.get(name, Matrix(name, name))
            elif seen.part is not None:
                for part in range(len(value)):
                    self.places[f"{name}.{part}"] = Matrix(f"{name}.{part}", name, part, seen.is_turned)
                self.layout[name] = {"parts": len(value), "turned": seen.is_turned}
            else:
                self.places[name] = seen
                if value.dim() > 2:
                    self.layout[name] = {"shape": list(value.shape)}
                elif seen.is_turned:
                    self.layout[name] = {"turned": True}
        if parameters.aliases and not keeps_layout:
            self.layout["tied"] = parameters.aliases

    def __getitem__(self, name: str) -> torch.Tensor:
        place = self.places[name]
        value = self.parameters.value(place.parameter, self.state[place.parameter])
        return value if self.is_own or place.parameter not in self.layout else place.of(value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


def _hash_of(value: Any, digest: Any) -> None:
    """Adds what statistics depend on in a batch, a loss, an option. What cannot be told is like nothing else."""
    if isinstance(value, torch.Tensor):
        digest.update(digest_of(value))
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _hash_of((key, one), digest)
    elif isinstance(value, list | tuple):
        digest.update(f"{len(value)} of".encode())
        for one in value:
            _hash_of(one, digest)
    elif hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        digest.update(f"{value.__module__}.{value.__qualname__} {value.__code__.co_consts}".encode())
        digest.update(value.__code__.co_code)
        _hash_of(cells + list(value.__defaults__ or ()), digest)
    else:
        try:
            digest.update(pickle.dumps(value))
        except Exception:
            digest.update(os.urandom(16))


def _fingerprint(parameters: Parameters, *others: Any) -> str:
    """Of a model's values and code, and of all else that statistics depend on."""
    digest = hashlib.blake2b(f"{_thimble.__version__} {type(parameters.model)} {parameters.model}".encode(), digest_size=16)
    for name, value in parameters.state().items():
        digest.update(name.encode() + digest_of(parameters.value(name, value)))
    _hash_of(others, digest)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Work:
    """The folder of a call: statistics, which belong to one fingerprint, and what is made of them."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def statistics(self) -> Path:
        return self.folder / "statistics.safetensors"

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def _facts(self) -> Path:
        return self.folder / "statistics.json"

    def find(self, fingerprint: str) -> tuple[dict[str, Matrix], list[list[str]]] | None:
        """The matrices and inputs of statistics that are here, whole, and of the same model, batches and options."""
        try:
            facts = json.loads(self._facts.read_text())
            if facts["fingerprint"] != fingerprint or not (self.checkpoint.exists() and self.statistics.exists()):
                return None
            return {one[0]: Matrix(*one) for one in facts["matrices"]}, facts["inputs"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, fingerprint: str, statistics: Statistics, checkpoint: _Checkpoint) -> None:
        self._facts.unlink(missing_ok=True)  # last, and whole, once all else is there
        statistics.write(self.statistics)
        write_safetensors(self.checkpoint, checkpoint)
        facts = {"fingerprint": fingerprint, "inputs": statistics.inputs(),
                 "matrices": [astuple(matrix) for matrix in statistics.matrices.values()]}  # fmt: skip
        temporary = self._facts.with_suffix(".part")
        temporary.write_text(json.dumps(facts))
        os.replace(temporary, self._facts)


def _config_of(model: torch.nn.Module) -> dict[str, Any]:
    config = getattr(model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    return json.loads(json.dumps(to_dict(), default=str)) if to_dict else {}


def _run(arguments: dict[str, Any], answers: Mapping[str, Callable[..., Any]], quiet: bool) -> dict[str, Any]:
    """The native part, in a process of its own, whose questions `answers` answer; an interrupt of this one ends it."""
    with tempfile.TemporaryFile() as said, subprocess.Popen(
        [sys.executable, "-m", "thimble._quantize_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=said if quiet else None,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).absolute().parents[1]), *sys.path])},
    ) as process:  # fmt: skip

        def send(message: Any) -> None:
            pickle.dump(message, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()

        try:
            send(arguments | {"asks": bool(answers)})
            while True:
                kind, *message = pickle.load(process.stdout)
                if kind != "ask":
                    break
                send(answers[message[0]](*message[1:]))
        except (EOFError, BrokenPipeError) as error:
            code = process.wait()
            said.seek(0)
            raise error_of(1, f"solving ended with {code}: {said.read().decode(errors='replace')}") from error
        except BaseException:
            process.terminate()
            raise
    if kind == "error":
        raise error_of(*message)
    return json.loads(message[0])


def _no_learning(predict: Predict | None, parameters: Parameters, batches: list[Any]) -> str | None:
    """Why neither codes nor gains can be learned; None where they can."""
    if predict is None:
        return "a loss is given, but no `predict` of the predictions to compare"
    if len(batches) < 2:
        return f"there is {len(batches)} batch, two are needed: one is held out"
    if parameters.are_offloaded:
        return "parameters of the model are kept elsewhere than where they are computed with"
    return None


def _check_numbers(cross_term: float, cross_damping: float, distilling: DistillOptions, learning: LearnOptions) -> None:
    for name, value, low, high in (("cross_term", cross_term, 0, 1), ("cross_damping", cross_damping, 0, 100),
                                   ("distill_steps", distilling.steps, 0, 1 << 20),
                                   ("distill_batch", distilling.batch, 1, 1 << 20),
                                   ("learn_steps", learning.steps, 0, 1 << 20), ("learn_batch", learning.batch, 1, 1 << 20),
                                   ("learn_rate", learning.rate, 0, 1)):  # fmt: skip
        if not low <= value <= high:
            raise UsageError(f"{name} is {value}, allowed are {low} to {high}")


def quantize(
    model: torch.nn.Module,
    batches: Iterable[Any],
    budget: int | str | None = None,
    out: str | os.PathLike[str] = "model.thmb",
    *,
    bits_per_weight: float | None = None,
    tokenizer: Any = None,
    loss: Loss | None = None,
    predict: Predict | None = None,
    fisher: bool = True,
    min_elements: int | None = None,
    cross_term: float = 1.0,
    cross_damping: float = 0.5,
    cross_batches: int | None = None,
    distill_steps: int | None = None,
    distill_batch: int = DistillOptions.batch,
    learn_steps: int = 0,
    learn_batch: int = LearnOptions.batch,
    learn_rate: float = LearnOptions.rate,
    work_dir: str | os.PathLike[str] | None = None,
    keep_work: bool = False,
    progress: bool = True,
) -> Report:
    """Writes `model` to `out`, an artifact of at most `budget` bytes ("60MB", 60000000), else of `bits_per_weight`.

    `batches`: token ids (sequences, length) on the model's device, or what `loss(model, batch)` takes: text that the
    model is used on. `tokenizer`, where it is one of transformers, is asked for the ids of special tokens alone.
    `min_elements`: matrices of at most as many elements are stored as fp16. `fisher`: also run back from the loss.

    `cross_term`, 0 to 1: how far each layer makes up for what those before it did to its input, with `cross_damping`
    added to Hessians, relative to their mean diagonal; on the first `cross_batches`, or all.
    `distill_steps`: steps of tuning gains of rows and small tensors, of `distill_batch` sequences each, at least a batch;
    default 32 where they can be tuned, which takes two batches and predictions.
    `learn_steps`: steps of learning codes instead, and gains of rows with them in modules of more than 50 million
    parameters, of `learn_batch` sequences each, at least a batch, which takes many more batches than statistics need;
    `learn_rate`: how many levels such a step moves a weight. `predict(model, batch)` gives the logits (..., classes)
    whose divergence from the original's is brought down: by default, without `loss`, of each next token. A few batches
    are held out, and what is not nearer to the original by 1 % on these is not kept. Not of models whose
    parameters are offloaded.

    `work_dir`, by default `out` + ".work", holds statistics and finished steps: after an interrupt, the same call goes
    on. Statistics of another model, other batches or options are collected anew.

    Raises UsageError, CheckError (the budget cannot be met), FormatError (a weight is not finite), IoError."""
    if (budget is None) == (bits_per_weight is None):
        raise UsageError("quantize: give a budget, or bits_per_weight")
    limit = None if budget is None else bytes_of(budget)
    is_large = sum(parameter.numel() for parameter in model.parameters()) > _thimble.FREE_CODES
    options = LearnOptions(learn_steps, learn_batch, learn_rate, is_large)
    distilling = DistillOptions(DistillOptions.steps if distill_steps is None else distill_steps, distill_batch)
    _check_numbers(cross_term, cross_damping, distilling, options)
    batches = list(batches)
    parameters = Parameters(model)
    if predict is None and loss is None:
        predict = next_token_logits
    reason = _no_learning(predict, parameters, batches)
    if reason and learn_steps:
        raise UsageError(f"learn_steps is {learn_steps}, but codes cannot be learned: {reason}")
    if reason and distill_steps:
        raise UsageError(f"distill_steps is {distill_steps}, but gains cannot be tuned: {reason}")
    if reason:
        distilling = DistillOptions(0)
    for name, value in parameters.values():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise FormatError(f"parameter {name!r} holds a value that is not finite")
    work = _Work(Path(f"{os.fspath(out)}.work" if work_dir is None else work_dir))
    work.folder.mkdir(parents=True, exist_ok=True)
    config = _config_of(model)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(tokenizer, key, None) is not None:
            config[key] = getattr(tokenizer, key)
    is_known = _thimble.runs(json.dumps(config))
    fingerprint = _fingerprint(parameters, batches, loss, fisher)
    found = work.find(fingerprint)
    if found is None:
        statistics = gather(model, batches, loss, fisher, progress)
        checkpoint = _Checkpoint(parameters, statistics.matrices, is_known)
        work.keep(fingerprint, statistics, checkpoint)
        matrices, inputs = statistics.matrices, statistics.inputs()
    else:
        matrices, inputs = found
        checkpoint = _Checkpoint(parameters, matrices, is_known)
    work.config.write_text(json.dumps(config if is_known else config | {LAYOUT_KEY: checkpoint.layout}))
    crossed = batches[: len(batches) if cross_batches is None else cross_batches]
    pairs = ModulePairs(model, inputs, checkpoint.places, crossed, loss or next_token_loss)
    answers: dict[str, Callable[..., Any]] = {
        "begin": pairs.begin, "collect": pairs.collect, "replace": pairs.replace, "end": pairs.end
    }  # fmt: skip
    key = f"{fingerprint} {len(crossed)}"
    if options.steps or distilling.steps:
        row_layers = {name for names in inputs for name in names}
        learner = ModuleLearner(model, checkpoint.places, batches, predict, options, distilling, row_layers, work.folder,
                                key, progress)  # fmt: skip
        answers |= {"learn": learner.learn, "distill": learner.distill, "divergence": learner.divergence}
    try:
        facts = _run(
            {
                "checkpoint": str(work.checkpoint), "config": str(work.config), "hessians": str(work.statistics),
                "output": os.fspath(out), "budget_bytes": limit, "bits_per_weight": bits_per_weight,
                "min_elements": min_elements, "fisher": fisher, "work_folder": str(work.folder / "steps"),
                "quiet": not progress, "inputs": inputs, "text_key": key, "cross_term": float(cross_term if crossed else 0),
                "cross_damping": float(cross_damping), "learn_steps": options.steps, "learn_batch": options.batch,
                "learn_rate": float(options.rate), "learn_rows": options.rows, "distill_steps": distilling.steps,
            },
            answers,
            not progress,
        )  # fmt: skip
    finally:
        pairs.end()
    if not keep_work:
        shutil.rmtree(work.folder)
    return Report(os.fspath(out), facts)
