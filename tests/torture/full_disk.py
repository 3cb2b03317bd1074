"""full_disk.py: runs on a disk that is full after so many bytes: exit code 5 with a reason, or success with the bytes
of an undisturbed run; an older output survives a failure, nothing half-written is left, and with room the same command
ends well. The disk is a tmpfs where mounting is permitted; else a limit on the size of files stands in for it.
"""

import ctypes
import os
import subprocess
import threading
from pathlib import Path

from harness import Case, Fault, Row, Torture
from undisturbed import INPUTS, Scenario, files_in, provide_inputs, require_outputs

CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
OLD = b"what was here before"
LEAST_BYTES = 4096


def enter_own_mounts() -> bool:
    """Mounts of this process and its children alone, gone with it whatever happens. To be called before there are
    threads. False where that is not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() != 0 or threading.active_count() > 1 or libc.unshare(CLONE_NEWNS) != 0:
        return False
    return libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None) == 0


def _mount(folder: Path, size_bytes: int, more: str = "") -> bool:
    options = f"{more}size={size_bytes}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True).returncode == 0


class FullDisk:
    def __init__(self, torture: Torture, scenarios: list[Scenario], files: Path, may_mount: bool):
        self.scenarios, self.files = scenarios, files
        probe = files / "probe"
        probe.mkdir()
        self.has_disks = may_mount and _mount(probe, 1 << 16)
        if self.has_disks:
            subprocess.run(["umount", str(probe)], check=True)
        else:
            torture.notes.append("mounting is not permitted here: full disks were limits on the size of files")
        probe.rmdir()

    def rows(self, count: int) -> list[Row]:
        kind = "full disk" if self.has_disks else "full disk (file size limit)"
        return [Row(kind, count, lambda case, index: self._attempt(case, index, count))]

    def _attempt(self, case: Case, index: int, count: int) -> None:
        scenario = self.scenarios[index % len(self.scenarios)]
        disk = case.path("disk")
        disk.mkdir()
        # Growing sizes, from a page to what inputs' links, old files and twice the outputs take.
        most = 4 * sum(map(len, scenario.outputs.values())) + (1 << 18)
        size = int(LEAST_BYTES * (most / LEAST_BYTES) ** (index / max(1, count - 1)))
        case.commands.append(f"# disk of {size} bytes")
        if not self.has_disks:
            return self._try(case, disk, scenario, size)
        if not _mount(disk, size + len(INPUTS) * 4096):
            raise RuntimeError("mount failed")
        try:
            self._try(case, disk, scenario, None)
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    def _try(self, case: Case, disk: Path, scenario: Scenario, file_limit_bytes: int | None) -> None:
        provide_inputs(case, self.files, disk)
        old = next(iter(sorted(name for name in scenario.outputs if name.startswith("out"))), None)
        if old:
            (disk / old).write_bytes(OLD)
        case.folder = disk
        try:
            run = case.expect(scenario.arguments, (0, 5), file_limit_bytes=file_limit_bytes)
            if run.code == 5:
                if old and (disk / old).read_bytes() != OLD:
                    raise Fault(f"{run.outcome()}, and the older {old} is gone")
                if partial := sorted(name for name in files_in(disk) if ".tmp" in name):
                    raise Fault(f"{run.outcome()}, and left {', '.join(partial)}")
                if file_limit_bytes is None and not _mount(disk, 1 << 28, "remount,"):
                    raise RuntimeError("remount failed")
                case.expect(scenario.arguments)
            require_outputs(scenario, disk)
        finally:
            case.folder = disk.parent
