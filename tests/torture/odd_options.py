"""odd_options.py: values that no option expects. The program takes them or refuses them with a documented exit code; it
neither crashes nor calls it an internal error.
"""

import re
import subprocess
from pathlib import Path

from harness import DOCUMENTED_ERRORS, Case, Row

DEVICE_ERROR = 6
VALUES = ("", " ", "-", "--", "-1", "-0", "+1", "01", "0x10", "1e-400", "1e309", "nan", "inf", "-inf", "1e", "1,", ",1",
          ",", "1,,2", "1 2", " 5", "5 ", "5\n", "\t", "0.5.5", "1_000", "1'000", "\u0663", "\ufeff5", "\udcff\udcfe",
          "%s%n%x",
          "$(true)", "`true`", "'", '"', "\\", "no/such/folder/file", ".", "..", "x" * 255, "x" * 5000,
          "a" * 100_000, "9" * 30, "18446744073709551616", "-9223372036854775809", "true", "null", "[]", "{}", "*", "?",
          "[a", "~", "@", "#", "=5", "--json", "-h-", "slope,slope", "cuda:-1", "cuda:99999999999", "cpu,cpu",
          "\x01\x02", "\u202e5", "16XB", "MB", "1e6e6")
# Arguments that make each command complete, small ones, so that a value that is taken ends soon.
COMPLETE = {
    "quantize": ["model.safetensors", "-o", "out.thmb", "--calibration-sequences", "1", "--calibration-length", "16"],
    "eval": ["model.safetensors", "--tokens", "val.bin", "--tokenizer", "sp.model", "--context", "32", "--stride", "16"],
    "sweep": ["model.safetensors", "-o", "curve", "--methods", "trace", "--budgets", "1000000",
              "--calibration-sequences", "1", "--calibration-length", "16", "--tokens", "val.bin", "--tokenizer",
              "sp.model", "--context", "32", "--stride", "16"],
    "budget": ["slope.thmb", "--limit", "100000"],
    "inspect": ["slope.thmb"],
    "verify": ["slope.thmb"],
    "export": ["slope.thmb", "-o", "out.safetensors"],
    "generate": ["slope.thmb", "--tokenizer", "sp.model", "--length", "4"],
    "audit": ["slope.thmb", "--tokens", "val.bin", "--tokenizer", "sp.model", "--context", "32", "--stride", "16"],
    "numerics": ["--op", "softmax", "--max-elements", "1000"],
    "doctor": [],
}
NO_VALUE = {"--help", "--help-all", "--version", "--json", "--quiet"}


class OddOptions:
    def __init__(self, program: str, files: Path):
        self.files = files
        self.options = [(command, option) for command in COMPLETE for option in self._options_of(program, command)]

    @staticmethod
    def _options_of(program: str, command: str) -> list[str]:
        for question in ("--help-all", "--help"):
            answer = subprocess.run([program, command, question], capture_output=True, text=True, timeout=60)
            if answer.returncode == 0:
                return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", answer.stdout)) - NO_VALUE)
        raise SystemExit(f"{program} {command} --help fails: {answer.stderr}")

    def rows(self, count: int) -> list[Row]:
        return [Row("odd option values", count, self._attempt, 120)]

    def _attempt(self, case: Case, index: int) -> None:
        command, option = self.options[index * 7919 % len(self.options)]
        value = case.random.choice(VALUES)
        for name in ("model.safetensors", "config.json", "val.bin", "sp.model", "slope.thmb"):
            case.path(name).write_bytes((self.files / name).read_bytes())
        arguments = self._without(COMPLETE[command], option)
        given = [f"{option}={value}"] if case.random.random() < 0.5 else [option, value]
        case.expect([command, *arguments, *given], (0, *DOCUMENTED_ERRORS, DEVICE_ERROR))

    @staticmethod
    def _without(arguments: list[str], option: str) -> list[str]:
        """An option given twice is refused before its value is looked at."""
        same = {option, {"--output": "-o"}.get(option, option)}
        for at, word in enumerate(arguments):
            if word in same:
                return arguments[:at] + arguments[at + 2:]
        return arguments
