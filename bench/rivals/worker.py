"""worker.py: makes one rival's files, in a process of its own, so that nothing that happens to it stops the others.

  worker.py RIVAL OPTIONS.json PART PARTS < settings that are not wanted, a JSON list

Of all settings it makes every PARTS-th, from PART on: processes side by side share the work.

OPTIONS.json: model, folder, calibration_int32, calibration_length, threads, and what the rivals' modules read besides.
Says what it does on standard output, a JSON object a line: {"versions"}, {"settings"}, {"begin": setting}, {"found":
setting, "files", "weights", "notes", "seconds"}, {"failed": setting or null for all, "reason"}.
"""

import importlib
import json
import os
import re
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

MODULES = {"llama.cpp": "llama_cpp", "hqq": "hqq_rival", "auto-round": "auto_round_rival", "nncodec": "nncodec_rival"}


def reason_of(error):
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1]}"[:300]


class Worker:
    def __init__(self, rival, options):
        # Libraries print where they like: what they print goes to the log, standard error.
        self.channel = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.lock = threading.Lock()
        self.rival, self.options = rival, options

    def say(self, **message):
        with self.lock:
            self.channel.write(json.dumps(message) + "\n")
            self.channel.flush()

    def make(self, module, setting, folder):
        self.say(begin=setting)
        began = time.monotonic()
        try:
            folder = folder / re.sub(r"[^A-Za-z0-9.]+", "-", setting)
            folder.mkdir(parents=True, exist_ok=True)
            candidate = module.make(self.options, setting, folder)
            self.say(found=setting, seconds=time.monotonic() - began, **asdict(candidate))
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self.say(failed=setting, reason=reason_of(error))

    def run(self, unwanted, part, parts):
        try:
            module = importlib.import_module(MODULES[self.rival])
            self.say(versions=module.versions(self.options))
            chosen = [setting for setting in module.settings(self.options)
                      if re.fullmatch(self.options.only.get(self.rival, ".*"), setting)]
            wanted = [setting for setting in chosen[part::parts] if setting not in unwanted]
            self.say(settings=wanted)
            folder = Path(self.options.folder) / self.rival
            folder.mkdir(parents=True, exist_ok=True)
            if wanted and hasattr(module, "prepare"):
                module.prepare(self.options, folder)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self.say(failed=None, reason=reason_of(error))
            return
        count = module.workers(self.options) if hasattr(module, "workers") else 1
        with ThreadPoolExecutor(count) as pool:
            for setting in wanted:
                pool.submit(self.make, module, setting, folder)


if __name__ == "__main__":
    chosen = SimpleNamespace(**json.loads(Path(sys.argv[2]).read_text()))
    Worker(sys.argv[1], chosen).run(set(json.load(sys.stdin)), int(sys.argv[3]), int(sys.argv[4]))
