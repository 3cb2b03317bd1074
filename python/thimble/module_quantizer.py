"""module_quantizer.py: any PyTorch module into an artifact under a budget: statistics by module_statistics.py, solved, searched and coded
by the program's own method slope, in a process of its own that an interrupt ends and a later call goes on with."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import _thimble
from ._safetensors import write_safetensors
from .artifact import LAYOUT_KEY, Artifact
from .module_statistics import Loss, Matrix, Statistics, gather
from .errors import FormatError, UsageError, error_of

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
        (folder / "README.md").write_text(
            f"---\nlibrary_name: transformers\ntags:\n- thimble\n---\n\n# {folder.name}\n\nThe weights are an artifact, "
            f"`model.thmb`, which is decoded when the model is loaded.\n\n| | |\n|---|---|\n{facts}\n\n"
            "Its loss against the original was not measured here.\n"
        )

    def _rows(self) -> list[tuple[str, str]]:
        facts = self.facts
        rows = [("artifact", self.path), ("parameters", f"{facts['parameters']:,}"),
                ("original", f"{facts['original_bytes']:,} B"),
                ("bytes", f"{facts['artifact_bytes']:,} B ({facts['bits_per_parameter']:.3f} bits per parameter)")]
        if facts.get("budget_bytes"):
            rows.append(("budget", f"{facts['budget_bytes']:,} B (fill {100 * facts['fill']:.2f} %)"))
        precisions = ", ".join(f"{name} for {count}" for name, count in facts["precisions"].items())
        rows.append(("precision", precisions))
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


def _prepared(model: torch.nn.Module, statistics: Statistics, config: dict[str, Any], keeps_layout: bool):
    """The checkpoint that is quantized, by name, and what becomes of the config: where matrices lie in parameters goes
    into it, for load_state_dict(). With `keeps_layout` the checkpoint is the model's own, which the program knows."""
    own = {name: value for name, value in model.state_dict().items()}
    aliases = _aliases(model)
    for name in aliases:
        own.pop(name, None)
    if keeps_layout:
        return own, config
    layout: dict[str, Any] = {}
    by_parameter: dict[str, list[Matrix]] = {}
    for matrix in statistics.matrices.values():
        by_parameter.setdefault(matrix.parameter, []).append(matrix)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in own.items():
        seen = by_parameter.get(name, [])
        if value.dim() == 3 and seen and seen[0].part is not None:
            is_turned = seen[0].is_turned
            for part in range(len(value)):
                tensors[f"{name}.{part}"] = Matrix("", name, part, is_turned).of(value)
            layout[name] = {"parts": len(value), "turned": is_turned}
        elif value.dim() > 2 and seen:
            tensors[name] = value.flatten(1)
            layout[name] = {"shape": list(value.shape)}
        elif seen and seen[0].is_turned:
            tensors[name] = value.T
            layout[name] = {"turned": True}
        else:
            tensors[name] = value
    if aliases:
        layout["tied"] = aliases
    return tensors, config | {LAYOUT_KEY: layout}


def _aliases(model: torch.nn.Module) -> dict[str, str]:
    """Names of parameters that are another one, by which it is stored."""
    first: dict[int, str] = {}
    aliases = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), name) != name:
            aliases[name] = first[id(parameter)]
    return aliases


def _config_of(model: torch.nn.Module) -> dict[str, Any]:
    config = getattr(model, "config", None)
    to_dict = getattr(config, "to_dict", None)
    return json.loads(json.dumps(to_dict(), default=str)) if to_dict else {}


def _run(arguments: dict[str, Any], quiet: bool) -> dict[str, Any]:
    """The native part, in a process of its own; an interrupt of this one ends it."""
    with subprocess.Popen(
        [sys.executable, "-m", "thimble._quantize_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).absolute().parents[1]), *sys.path])},
    ) as process:  # fmt: skip
        try:
            answer, said = process.communicate(json.dumps(arguments))
        except BaseException:
            process.terminate()
            raise
    given = json.loads(answer) if answer else {"exit_code": 1, "message": f"ended with {process.returncode}: {said}"}
    if "exit_code" in given:
        raise error_of(given["exit_code"], given["message"])
    return given


def quantize(
    model: torch.nn.Module,
    batches: Iterable[Any],
    budget: int | str | None = None,
    out: str | os.PathLike[str] = "model.thmb",
    *,
    bits_per_weight: float | None = None,
    tokenizer: Any = None,
    loss: Loss | None = None,
    fisher: bool = True,
    min_elements: int | None = None,
    work_dir: str | os.PathLike[str] | None = None,
    keep_work: bool = False,
    progress: bool = True,
) -> Report:
    """Writes `model` to `out`, an artifact of at most `budget` bytes ("60MB", 60000000), else of `bits_per_weight`.

    `batches`: token ids (sequences, length) on the model's device, or what `loss(model, batch)` takes: text that the
    model is used on. `tokenizer`, where it is one of transformers, is asked for the ids of special tokens alone.
    `min_elements`: matrices of at most as many elements are stored as fp16. `work_dir`, by default `out` + ".work",
    holds statistics and finished steps: after an interrupt, the same call goes on. `fisher`: also run back from the
    loss. Cross terms and learning, which the program does for models that it runs, are left out.

    Raises UsageError, CheckError (the budget cannot be met), FormatError (a weight is not finite), IoError."""
    if (budget is None) == (bits_per_weight is None):
        raise UsageError("quantize: give a budget, or bits_per_weight")
    limit = None if budget is None else bytes_of(budget)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point() and not torch.isfinite(parameter).all():
            raise FormatError(f"parameter {name!r} holds a value that is not finite")
    work = Path(f"{os.fspath(out)}.work" if work_dir is None else work_dir)
    work.mkdir(parents=True, exist_ok=True)
    checkpoint, statistics_file, config_file = (
        work / name for name in ("checkpoint.safetensors", "statistics.safetensors", "config.json")
    )
    if not (checkpoint.exists() and statistics_file.exists() and config_file.exists()):
        statistics = gather(model, batches, loss, fisher, progress)
        config = _config_of(model)
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            if getattr(tokenizer, key, None) is not None:
                config[key] = getattr(tokenizer, key)
        tensors, config = _prepared(model, statistics, config, _thimble.runs(json.dumps(config)))
        for name in [name for name in statistics.matrices if name not in tensors]:  # tied under another name
            statistics.sums.pop(name, None)
        statistics.write(statistics_file)
        write_safetensors(checkpoint, tensors)
        config_file.write_text(json.dumps(config))
    facts = _run(
        {
            "checkpoint": str(checkpoint), "config": str(config_file), "hessians": str(statistics_file),
            "output": os.fspath(out), "budget_bytes": limit, "bits_per_weight": bits_per_weight,
            "min_elements": min_elements, "fisher": fisher, "work_folder": str(work / "steps"), "quiet": not progress,
        },
        not progress,
    )  # fmt: skip
    if not keep_work:
        shutil.rmtree(work)
    return Report(os.fspath(out), facts)
