"""undisturbed.py: commands with outputs, and what they write when nothing disturbs them: what a run that was killed, or
had no room, must end up with when it is started again.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from harness import Case, Fault

CALIBRATION = ["--calibration-sequences", "8", "--calibration-length", "64", "--min-elements", "100"]
SCORING = ["--tokens", "val.bin", "--tokenizer", "sp.model", "--context", "32", "--stride", "16"]
QUANTIZE = ["quantize", "model.safetensors", "-o", "out.thmb", *CALIBRATION]
INPUTS = ("model.safetensors", "config.json", "model.pt", "gpt2.safetensors", "gpt2.bin", "sp.model", "val.bin",
          "slope.thmb")
MEASURED = re.compile("seconds|_s$|memory|^notes$")  # a note tells of a full disk, which is no part of the result


@dataclass
class Scenario:
    """A command, and the files that it must leave beside its inputs."""

    name: str
    arguments: list[str]
    outputs: dict[str, bytes]
    seconds: float


SCENARIOS = {
    "slope to a budget": [*QUANTIZE, "--budget", "12000", *SCORING],
    "slope at a step": [*QUANTIZE, "--log2-step", "-7", "--distill-steps", "64"],
    "slope to a gap": [*QUANTIZE, "--target-bpb-gap", "0.3", "--trellis-bits", "3", *SCORING],
    "slope, outputs": [*QUANTIZE, "--budget", "14000", "--save-hessians", "hessians.safetensors", "--save-calibration",
                       "calibration.bin", "--codec", "brotli", "--distill-steps", "4"],
    "trace to a budget": [*QUANTIZE, "--method", "trace", "--budget", "26000"],
    "trace, xz": [*QUANTIZE, "--method", "trace", "--codec", "xz", "--save-hessians", "hessians.safetensors"],
    "nvfp4": [*QUANTIZE, "--method", "nvfp4"],
    "slope of a GPT-2": ["quantize", "gpt2.safetensors", "-o", "out.thmb", "--budget", "16000", *CALIBRATION],
    "trace of a .bin": ["quantize", "gpt2.bin", "-o", "out.thmb", "--method", "trace", *CALIBRATION],
    "sweep": ["sweep", "model.safetensors", "-o", "curve", "--methods", "slope,trace", "--budgets", "20000,27000",
              "--keep-artifacts", "--trellis-bits", "3", "--distill-steps", "4", *CALIBRATION, *SCORING],
    "export": ["export", "slope.thmb", "-o", "out.safetensors"],
}


def _without_measured(value):
    if isinstance(value, dict):
        return {key: _without_measured(v) for key, v in value.items() if not MEASURED.search(key)}
    return [_without_measured(v) for v in value] if isinstance(value, list) else value


def _comparable(path: Path) -> bytes:
    """A file's bytes; of a report without measured times and notes, of a picture that it is one."""
    data = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_without_measured(json.loads(data)), sort_keys=True).encode()
    return b"" if path.suffix in (".png", ".svg", ".html") else data


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def provide_inputs(case: Case, files: Path, folder: Path | None = None) -> None:
    for name in INPUTS:
        ((folder or case.folder) / name).symlink_to(files / name)


def record(name: str, arguments: list[str], case: Case, files: Path) -> Scenario:
    """Runs the command undisturbed in the case's folder."""
    provide_inputs(case, files)
    run = case.expect(arguments)
    outputs = {output: _comparable(case.path(output)) for output in files_in(case.folder) - set(INPUTS)}
    return Scenario(name, arguments, outputs, run.seconds)


def require_outputs(scenario: Scenario, folder: Path, untouched: set[str] = frozenset()) -> None:
    """The undisturbed run's files, byte for byte, and no other."""
    found = files_in(folder) - set(INPUTS) - untouched
    if found != scenario.outputs.keys():
        missing, more = sorted(scenario.outputs.keys() - found), sorted(found - scenario.outputs.keys())
        raise Fault(f"missing: {', '.join(missing) or 'nothing'}; left over: {', '.join(more) or 'nothing'}")
    for name, expected in scenario.outputs.items():
        if _comparable(folder / name) != expected:
            raise Fault(f"{name} is not what an undisturbed run writes")
