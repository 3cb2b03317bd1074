"""kills.py: runs ended by SIGKILL at random points, once or several times, and then started again: the files are those
of an undisturbed run, byte for byte, and nothing else is left.

Half of the points are moments of time, half are changes of the folder: a file that appears, vanishes or takes another's
place. Those reach what takes microseconds: the writing of each result and the last rename.
"""

import time
from pathlib import Path

from harness import Case, Fault, Row
from undisturbed import Scenario, provide_inputs, require_outputs

MOST_CHANGES = 60


def _names(folder: Path) -> set[tuple[str, int]]:
    found = set()
    for path in (folder, *(p for p in folder.iterdir() if p.suffix == ".work")):
        try:
            found |= {(entry.name, entry.stat(follow_symlinks=False).st_ino) for entry in path.iterdir()}
        except FileNotFoundError:  # gone meanwhile
            found.add((path.name, 0))
    return found


class Kills:
    def __init__(self, scenarios: list[Scenario], files: Path):
        self.scenarios, self.files = scenarios, files

    def rows(self, count: int) -> list[Row]:
        rows = []
        for i, scenario in enumerate(self.scenarios):
            share = count // len(self.scenarios) + (i < count % len(self.scenarios))
            rows.append(Row(f"killed: {scenario.name}", share,
                            lambda case, index, scenario=scenario: self._attempt(case, scenario)))
        return rows

    def _attempt(self, case: Case, scenario: Scenario) -> None:
        provide_inputs(case, self.files)
        threads = ["--threads", str(case.random.choice((1, 2, 3)))]
        for _ in range(case.random.choice((1, 1, 2, 4))):
            if not self._kill_once(case, [*scenario.arguments, *threads], scenario):
                break
        case.expect(scenario.arguments)
        require_outputs(scenario, case.folder)

    def _kill_once(self, case: Case, arguments: list[str], scenario: Scenario) -> bool:
        """True when it was killed; a run that ends before its point must have ended well."""
        by_time = case.random.random() < 0.5
        moment = case.random.uniform(0, 1.2 * scenario.seconds)
        change = case.random.randrange(1, MOST_CHANGES)
        pause = case.random.choice((0, 0, 0.0005, 0.005))
        began = time.monotonic()
        process = case.start(arguments)
        point = f"{moment:.4f} s" if by_time else f"change {change} of the folder"
        case.commands.append(f"# to be killed after {point}")
        seen, changes = _names(case.folder), 0
        while process.poll() is None and time.monotonic() - began < case.limit_seconds:
            if by_time:
                if time.monotonic() - began >= moment:
                    break
                time.sleep(min(0.002, max(0.0, moment - (time.monotonic() - began))))
                continue
            now = _names(case.folder)
            changes, seen = changes + (now != seen), now
            if changes >= change:
                time.sleep(pause)
                break
        process.kill()
        run = case.finish(process, began)
        if run.code not in (0, -9):
            raise Fault(f"{run.outcome()} while it waited to be killed; {run.err.strip()[-300:]!r}")
        return run.code == -9
