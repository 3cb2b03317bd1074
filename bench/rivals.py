#!/usr/bin/env python3
"""Quantizes one model with other programs and with thimble at the same whole-file bytes, and scores all of them.

  bench/rivals.py MODEL --text TEXT --calibration SHARD --out FOLDER [--rivals llama.cpp hqq auto-round nncodec]
      [--llama-library DIR --llama-include DIR...] [--score "OPTIONS"] [--quantize "OPTIONS"]

MODEL is a folder of Hugging Face. All are calibrated on the same tokens, --calibration-sequences of
--calibration-length tokens that lie evenly in SHARD, and scored by `thimble eval` on the same text: the gap in bits per
byte to the original, and the divergence of their predictions from its. What a rival's file stands for is dequantized by
the rival's own code. A rival's file also counts after xz -9e, but where all of it comes from an entropy coder. Each
rival runs in a process of its own; one that fails, or is not installed, is a row with its reason. FOLDER/results.json
grows with every result, so that the same command goes on where it ended; FOLDER/rivals.md has the tables and goals,
FOLDER/rivals.svg the curve where gnuplot is installed, FOLDER/runs/logs what the rivals said.
"""
import argparse
import hashlib
import itertools
import json
import lzma
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "rivals"))

import comparison  # noqa: E402: a module of this benchmark
from token_shard import HEADER_BYTES, token_bytes  # noqa: E402
from worker import MODULES  # noqa: E402

MOST_SCORED_TOGETHER = 4  # models in one evaluation: the original runs once for all of them
BELOW_THE_SMALLEST = ((0.55, 0.65, 0.75, 0.87), (0.47,), (0.4,))  # of the smallest file, in turn
OUT_OF_TIME = "the time was up"
GRACE_SECONDS = 2  # for processes that are ended to be seen ended
FIRST, SECOND, LAST = range(3)  # scores that the goals need; thimble at their types, other rivals' scores; the rest


def calibration(options, folder):
    """Writes the sequences that all calibrate on, as a shard and as int32. Returns their number and hash."""
    raw = Path(options.calibration).read_bytes()
    bytes_each = token_bytes(raw)
    length = options.calibration_length * bytes_each
    present = (len(raw) - HEADER_BYTES) // length
    count = min(present, options.calibration_sequences)
    if not count:
        sys.exit(f"{options.calibration}: has no {options.calibration_length} tokens")
    starts = [HEADER_BYTES + i * present // count * length for i in range(count)]
    tokens = b"".join(raw[start:start + length] for start in starts)
    header = raw[:8] + (len(tokens) // bytes_each).to_bytes(4, "little") + raw[12:HEADER_BYTES]
    (folder / "calibration.bin").write_bytes(header + tokens)
    wide = b"".join(tokens[i:i + bytes_each].ljust(4, b"\0") for i in range(0, len(tokens), bytes_each))
    (folder / "calibration.int32").write_bytes(wide)
    return count, hashlib.sha256(wide).hexdigest()[:16]


def packed_bytes(path):
    return len(lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME))


class Run:
    def __init__(self, options):
        self.options = options
        self.out = Path(options.out)
        self.folder = Path(options.work or self.out / "runs")
        for folder in (self.out, self.folder / "logs"):
            folder.mkdir(parents=True, exist_ok=True)
        self.deadline = time.monotonic() + options.seconds if options.seconds else None
        self.lock = threading.RLock()
        self.jobs = queue.PriorityQueue()
        self.order = itertools.count()
        self.packers = ThreadPoolExecutor(max(1, options.threads))
        sequences, tokens = calibration(options, self.folder)
        self.setup = {"model": Path(options.model).resolve().name, "text": Path(options.text).name,
                      "calibration": f"{sequences} x {options.calibration_length} tokens of "
                                     f"{Path(options.calibration).name}", "calibration_hash": tokens,
                      "score": options.score, "quantize": options.quantize}
        self.parameters = self.thimble("inspect", options.model)["parameters"]
        self.version = self.text_of("--version")
        self.path = self.out / "results.json"
        self.rows = []
        if self.path.exists():
            kept = json.loads(self.path.read_text())
            changed = [key for key in self.setup if kept["setup"].get(key) != self.setup[key]]
            if changed:
                sys.exit(f"{self.path}: made with another {', '.join(changed)}: choose another --out")
            self.rows = comparison.scored(kept["rows"])  # what failed is tried again
        self.pending = {(r["rival"], r["setting"]) for r in self.rows}
        self.packing = 0      # files
        self.goal_sizes = []  # bytes of the files that the goals are about

    def left(self):
        """Seconds; None without a limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def text_of(self, *arguments):
        words = [self.options.program, *map(str, arguments)]
        if self.out_of_time():
            raise RuntimeError(OUT_OF_TIME)
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=self.left())
        except subprocess.TimeoutExpired:
            raise RuntimeError(OUT_OF_TIME) from None
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"thimble {arguments[0]}: exit {done.returncode}"]
            raise RuntimeError(lines[-1])
        return done.stdout.strip()

    def thimble(self, *arguments):
        return json.loads(self.text_of(*arguments, "--json", "--quiet"))

    def kept(self):
        return {"setup": self.setup, "parameters": self.parameters, "rows": self.rows}

    def keep(self, row):
        with self.lock:
            self.rows.append(row)
            beside = self.path.with_suffix(".tmp")
            beside.write_text(json.dumps(self.kept(), indent=1) + "\n")
            beside.replace(self.path)
        said = (f"failed, {row['failed']}" if "failed" in row else
                f"{row['file_bytes']:,} B, gap {row['gap']:+.6f}, KL {row['kl']:.6f}")
        print(f"{row['rival']} {row['setting']}: {said}", flush=True)

    def fail(self, rival, setting, reason):
        if not any("failed" in r and (r["rival"], r["setting"]) == (rival, setting) for r in self.rows):
            self.keep({"rival": rival, "setting": setting, "failed": str(reason)[:300]})

    def put(self, urgency, kind, job):
        self.jobs.put((urgency, next(self.order), kind, job))

    # Rivals

    def follow(self, rival, part, parts):
        """Runs one rival's process, again without what it died of, until all of its settings are done."""
        unwanted = {row["setting"] for row in self.rows if row["rival"] == rival}
        python = dict(word.split("=", 1) for word in self.options.python).get(rival, sys.executable)
        command = [python, str(ROOT / "bench" / "rivals" / "worker.py"), rival, str(self.folder / "options.json"),
                   str(part), str(parts)]
        while True:
            with open(self.folder / "logs" / f"{rival}-{part}.txt", "ab") as log:
                try:
                    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                               text=True, start_new_session=True)
                except OSError as error:
                    self.fail(rival, "all", error)
                    return
                timer = None
                if self.deadline:  # ends it with what it started
                    timer = threading.Timer(max(0, self.left()), os.killpg, (process.pid, signal.SIGKILL))
                    timer.start()
                done, wanted = self.listen(rival, process, unwanted)
                if timer:
                    timer.cancel()
            missing = [setting for setting in wanted if setting not in unwanted | done]
            if not missing:
                return
            if not done or self.out_of_time():
                for setting in missing:
                    self.fail(rival, setting, self.end_of(process))
                return
            unwanted |= done

    def end_of(self, process):
        return OUT_OF_TIME if self.out_of_time() else f"its process ended ({process.returncode})"

    def follow_and_extend(self, rival, part, parts):
        self.follow(rival, part, parts)
        if rival == comparison.GOAL_RIVAL:
            self.extend(BELOW_THE_SMALLEST[0], SECOND)

    def extend(self, shares, urgency):
        """Thimble at fewer bytes than any of the rival that the goals name, where its losses are as large."""
        with self.lock:
            for share in shares if self.goal_sizes else ():
                self.want(int(share * min(self.goal_sizes)), urgency)

    def out_of_time(self):
        return self.deadline is not None and self.left() <= 0

    def listen(self, rival, process, unwanted):
        """Returns the settings that are done, however, and all that were wanted."""
        versions, wanted, in_flight, done = "", ["all"], set(), set()
        try:
            json.dump(sorted(unwanted), process.stdin)
            process.stdin.close()
            for line in process.stdout:
                message = json.loads(line)
                versions = message.get("versions", versions)
                wanted = message.get("settings", wanted)
                if "begin" in message:
                    in_flight.add(message["begin"])
                elif "found" in message:
                    in_flight.discard(message["found"])
                    done.add(message["found"])
                    self.announce({"rival": rival, "setting": message["found"], "versions": versions,
                                   **{key: message[key] for key in ("files", "weights", "notes", "seconds",
                                                                       "is_compressible")}})
                elif "failed" in message:
                    setting = message["failed"] or "all"
                    in_flight.discard(setting)
                    done |= {setting} if message["failed"] else set(wanted)
                    self.fail(rival, setting, message["reason"])
        except (BrokenPipeError, ValueError):  # it died before or while it said something
            pass
        process.wait()
        for setting in in_flight:
            self.fail(rival, setting, self.end_of(process))
        return done | in_flight, wanted

    def announce(self, row):
        files, is_compressible = [Path(path) for path in row.pop("files")], row.pop("is_compressible")
        row["file_bytes"] = sum(path.stat().st_size for path in files)
        self.match(row)
        with self.lock:
            self.packing += 1

        def pack():
            try:
                row["xz_bytes"] = sum(packed_bytes(path) for path in files) if is_compressible else row["file_bytes"]
                for path in files:
                    path.unlink()
                self.put(FIRST if row["rival"] == comparison.GOAL_RIVAL else SECOND, "score", row)
            except OSError as error:
                self.fail(row["rival"], row["setting"], error)
            finally:
                with self.lock:
                    self.packing -= 1

        self.packers.submit(pack)

    def match(self, row):
        is_goal = row["rival"] == comparison.GOAL_RIVAL
        if is_goal:
            self.goal_sizes.append(row["file_bytes"])
            is_goal = row["setting"] in (self.options.matched or [row["setting"]])
        if is_goal or self.options.everywhere:
            self.want(row["file_bytes"], SECOND if is_goal else LAST)

    def want(self, size, urgency):
        """Thimble at these bytes, once."""
        key = ("thimble", f"budget {size}")
        with self.lock:
            if key in self.pending:
                return
            self.pending.add(key)
        self.put(urgency, "quantize", size)

    # What runs on the device

    def quantize(self, size):
        setting = f"budget {size}"
        artifact = self.folder / f"thimble-{size}.thmb"
        try:
            began = time.monotonic()
            self.thimble("quantize", self.options.model, "-o", artifact, "--budget", size, "--calibration-tokens",
                         self.folder / "calibration.bin", "--calibration-length", self.options.calibration_length,
                         "--no-resume", *self.statistics(), *shlex.split(self.options.quantize))
            self.put(FIRST, "score", {
                "rival": "thimble", "setting": setting, "versions": self.version, "notes": "", "weights": str(artifact),
                "seconds": time.monotonic() - began, "file_bytes": artifact.stat().st_size,
                "xz_bytes": artifact.stat().st_size})
        except (RuntimeError, OSError, ValueError) as error:
            self.fail("thimble", setting, error)

    def statistics(self):
        """Options of --share-statistics: the first run saves what the others read, which gives the same artifacts."""
        if not self.options.share_statistics:
            return []
        kept = self.folder / "statistics.safetensors"
        return ["--hessians" if kept.exists() else "--save-hessians", kept]

    def score(self, rows):
        options = self.options
        tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
        try:
            original, *others = self.thimble(
                "eval", options.model, *(row["weights"] for row in rows), "--divergence", "--text", options.text,
                *tokenizer, "--config", Path(options.model) / "config.json", *shlex.split(options.score))["evaluations"]
        except (RuntimeError, OSError, ValueError) as error:
            if len(rows) == 1:
                self.fail(rows[0]["rival"], rows[0]["setting"], error)
            else:
                for row in rows:
                    self.score([row])
            return
        for row, other in zip(rows, others):
            weights = Path(row.pop("weights"))
            shutil.rmtree(weights) if weights.is_dir() else weights.unlink()
            self.keep(row | {
                "original_bpb": original["bits_per_byte"], "scope": other["scope"], "context": other["context"],
                "stride": other["stride"], "gap": other["gap_bits_per_byte"], "error": other["gap_standard_error"],
                "kl": other["divergence"]["mean_nats"], "kl_error": other["divergence"]["standard_error"],
                "same_top": other["divergence"]["same_top"]})

    def work(self):
        while True:
            job = self.jobs.get()
            try:
                if job[2] == "quantize":
                    self.quantize(job[3])
                    continue
                rows = [job[3]]
                try:
                    while len(rows) < MOST_SCORED_TOGETHER:
                        other = self.jobs.get_nowait()
                        if other[2] != "score":
                            self.jobs.put(other)
                            self.jobs.task_done()
                            break
                        rows.append(other[3])
                except queue.Empty:
                    pass
                try:
                    self.score(rows)
                finally:
                    for _ in rows[1:]:
                        self.jobs.task_done()
            finally:
                self.jobs.task_done()

    def drain(self):
        """Until nothing is queued, running or being packed, or the time is up."""
        while not self.out_of_time():
            with self.lock:
                if not self.packing and not self.jobs.unfinished_tasks:
                    return
            time.sleep(0.05)

    def run(self):
        options = self.options
        (self.folder / "options.json").write_text(json.dumps({
            "model": options.model, "folder": str(self.folder), "threads": options.threads, "types": options.types,
            "calibration_int32": str(self.folder / "calibration.int32"),
            "calibration_length": options.calibration_length, "llama_include": options.llama_include,
            "llama_library": options.llama_library, "llama_program": options.llama_program,
            "auto_round_iterations": options.auto_round_iterations,
            "only": dict(word.split("=", 1) for word in options.only)}))
        for row in comparison.others_of(self.rows):
            self.match(row)
        workers = [threading.Thread(target=self.work, daemon=True) for _ in range(options.jobs)]
        parts = {rival: int(count) for rival, count in (word.split("=") for word in options.processes)}
        rivals = [threading.Thread(target=self.follow_and_extend, args=(rival, part, parts.get(rival, 1)), daemon=True)
                  for rival in options.rivals for part in range(parts.get(rival, 1))]
        for thread in workers + rivals:
            thread.start()
        for thread in rivals:
            thread.join()
        self.drain()
        for shares in BELOW_THE_SMALLEST[1:]:
            if not comparison.reaches_all(self.rows):
                self.extend(shares, LAST)
                self.drain()
        self.report()
        if self.out_of_time():  # nothing that is still running holds the end up
            time.sleep(GRACE_SECONDS)
            self.report()
            os._exit(0)

    def report(self):
        with self.lock:
            comparison.write_report(self.kept(), self.out)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model")
    options.add_argument("--text", required=True)
    options.add_argument("--calibration", required=True, help="token shard, as `thimble tokenize` writes it")
    options.add_argument("--calibration-length", type=int, default=1024)
    options.add_argument("--calibration-sequences", type=int, default=128)
    options.add_argument("--out", required=True)
    options.add_argument("--work", help="folder of large files (default: OUT/runs)")
    options.add_argument("--tokenizer", default="", help="where the folder has none")
    options.add_argument("--rivals", nargs="*", choices=MODULES, default=list(MODULES))
    options.add_argument("--python", nargs="+", default=[], metavar="RIVAL=PROGRAM", help="that has its packages")
    options.add_argument("--processes", nargs="+", default=[], metavar="RIVAL=N", help="of a rival, side by side")
    options.add_argument("--types", nargs="+", help="of llama.cpp")
    options.add_argument("--only", nargs="+", default=[], metavar="RIVAL=PATTERN", help="settings of a rival, whose "
                         "whole name a regular expression matches (default: all)")
    options.add_argument("--matched", nargs="+", help="types of llama.cpp at whose bytes thimble runs; at those of the "
                         "others its losses are interpolated (default: all)")
    options.add_argument("--llama-include", nargs="+", default=[])
    options.add_argument("--llama-library", default="")
    options.add_argument("--llama-program", default="", help="llama_cpp.cpp, compiled")
    options.add_argument("--auto-round-iterations", type=int, default=200)
    options.add_argument("--everywhere", action="store_true", help="thimble at all rivals' bytes")
    options.add_argument("--score", default="", help="further options of thimble eval, in one word")
    options.add_argument("--quantize", default="", help="further options of thimble quantize, in one word")
    options.add_argument("--share-statistics", action="store_true",
                         help="thimble collects statistics once: seconds of its other runs are without")
    options.add_argument("--jobs", type=int, default=1, help="runs of thimble at the same time")
    options.add_argument("--threads", type=int, default=os.cpu_count())
    options.add_argument("--seconds", type=float, help="ends then, with what there is")
    options.add_argument("--program", default=str(ROOT / "build/release/quantizer/thimble"))
    chosen = options.parse_args()
    if chosen.share_statistics and chosen.jobs > 1:
        options.error("--share-statistics needs --jobs 1")
    Run(chosen).run()


if __name__ == "__main__":
    main()
