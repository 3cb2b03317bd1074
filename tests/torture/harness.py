"""harness.py: runs attempts to break the program, many at a time, and keeps what is needed to repeat those that did.

An attempt is one index of one row of the table. It gets a folder of its own and random numbers that follow from the
seed, the row and the index alone; it raises Fault when the program did what it must not. A folder with a fault stays,
with the commands that were run in it.
"""

import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

DOCUMENTED_ERRORS = (2, 3, 4, 5)  # README, "Exit codes", less a device that is missing and mistakes of the program
SHOWN_CHARACTERS = 2000


class Fault(Exception):
    """What the program did wrong, in one line."""


@dataclass
class Run:
    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    timed_out: bool = False

    def outcome(self) -> str:
        if self.timed_out:
            return "ran out of time"
        return f"exit code {self.code}" if self.code >= 0 else f"ended by {signal.Signals(-self.code).name}"


@dataclass
class Case:
    """One attempt: its folder, its random numbers, and what was run."""

    program: str
    folder: Path
    random: random.Random
    limit_seconds: float
    commands: list[str] = field(default_factory=list)

    def path(self, name: str) -> Path:
        return self.folder / name

    def start(self, arguments: list[str], file_limit_bytes: int | None = None) -> subprocess.Popen:
        """Starts the program in the folder; what it says goes to files, so that no pipe can hold it up."""
        prefix = f"ulimit -f {file_limit_bytes // 512}; " if file_limit_bytes is not None else ""
        words = [self.program, *arguments]
        self.commands.append(f"{prefix}{shlex.join(words)}")

        def limit() -> None:
            if file_limit_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit_bytes, file_limit_bytes))

        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        return subprocess.Popen([os.fsencode(word) for word in words], cwd=self.folder, stdin=subprocess.DEVNULL,
                                stdout=self.out, stderr=self.err, preexec_fn=limit)

    def finish(self, process: subprocess.Popen, began: float) -> Run:
        timed_out = False
        try:
            process.wait(max(0.1, self.limit_seconds - (time.monotonic() - began)))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            timed_out = True
        texts = []
        for stream in (self.out, self.err):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        run = Run(process.returncode, *texts, time.monotonic() - began, timed_out)
        self.commands.append(f"# {run.outcome()}: {run.err[-SHOWN_CHARACTERS:].strip()!r}")
        return run

    def run(self, arguments: list[str], file_limit_bytes: int | None = None) -> Run:
        began = time.monotonic()
        return self.finish(self.start(arguments, file_limit_bytes), began)

    def expect(self, arguments: list[str], codes: tuple[int, ...] = (0,), **limits) -> Run:
        """Runs and checks the exit code, and that a failure is explained and is not called internal."""
        run = self.run(arguments, **limits)
        require_sound(run, codes)
        return run


def require_sound(run: Run, codes: tuple[int, ...]) -> None:
    if run.timed_out or run.code not in codes:
        raise Fault(f"{run.outcome()}, allowed: {', '.join(map(str, codes))}; {run.err.strip()[-300:]!r}")
    if "internal error" in run.err:
        raise Fault(f"{run.outcome()} with an internal error; {run.err.strip()[-300:]!r}")
    if run.code != 0 and "thimble: " not in run.err and '"error"' not in run.err:
        raise Fault(f"{run.outcome()} without a reason")


@dataclass
class Row:
    """One line of the table: `attempt(case, index)` is made `count` times."""

    name: str
    count: int
    attempt: object
    limit_seconds: float = 120
    failures: int = 0
    seconds: float = 0.0


class Torture:
    def __init__(self, program: str, seed: int, jobs: int, kept: Path):
        self.program, self.seed, self.jobs, self.kept = program, seed, jobs, kept
        self.notes: list[str] = []

    def folder_of(self, row: Row, index: int) -> Path:
        return self.kept / f"{re.sub('[^A-Za-z0-9.]+', '-', row.name)}-{index}"

    def case(self, row: Row, index: int) -> Case:
        folder = self.folder_of(row, index)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return Case(self.program, folder, random.Random(f"{self.seed}/{row.name}/{index}"), row.limit_seconds)

    def attempt(self, row: Row, index: int) -> None:
        case = self.case(row, index)
        began = time.monotonic()
        try:
            row.attempt(case, index)
            shutil.rmtree(case.folder, ignore_errors=True)
        except Exception as error:  # a mistake of these scripts must not pass for success either
            row.failures += 1
            text = str(error) if isinstance(error, Fault) else traceback.format_exc()
            case.folder.mkdir(parents=True, exist_ok=True)
            commands = "\n".join(case.commands)
            case.path("commands.txt").write_text(
                f"# seed {self.seed}, {row.name}, number {index}\n# {text}\ncd {shlex.quote(str(case.folder))}\n"
                f"{commands}\n", errors="backslashreplace")
            print(f"FAILED: {row.name}, number {index}: {text.strip().splitlines()[-1]}\n  kept in {case.folder}",
                  flush=True)
        row.seconds += time.monotonic() - began

    def run(self, rows: list[Row], only: int | None = None) -> bool:
        """Makes all attempts and prints the table. True when none failed."""
        self.kept.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self.jobs) as pool:
            for row in rows:
                numbers = range(row.count) if only is None else [only]
                list(pool.map(lambda index, row=row: self.attempt(row, index), numbers))
                print(f"{row.name}: {row.count - row.failures} of {row.count} as they must be", flush=True)
        print("\n" + table(rows), end="")
        for note in self.notes:
            print(f"note: {note}")
        return all(row.failures == 0 for row in rows)


def table(rows: list[Row]) -> str:
    total = Row("all", sum(r.count for r in rows), None, 0, sum(r.failures for r in rows), sum(r.seconds for r in rows))
    width = max(len(row.name) for row in [*rows, total])
    lines = [f"{'what':{width}}  {'runs':>6}  {'failures':>8}  {'seconds':>8}"]
    lines += [f"{r.name:{width}}  {r.count:6}  {r.failures:8}  {r.seconds:8.1f}" for r in [*rows, total]]
    return "\n".join(lines) + "\n"
