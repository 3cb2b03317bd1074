#!/usr/bin/env python3
"""What a model loses at several sizes, by where its calibration text comes from and how it is tuned: a Markdown table.

  bench/calibration_bench.py build/release/quantizer/thimble checkpoint --calibration-text train.txt \\
      --score "--tokens val.bin --tokenizer sp.model" [--bits 2,2.5,3,4] [--seeds 1] [--output rows.jsonl] \\
      [further options of thimble quantize]

Four files of each size and seed: the model's own text and the text given, gains tuned and codes learned, 200 steps as
with --effort best or as many as --learned says. Each file is decoded and scored. Rows are added to --output as they
come; what is there already is not made again. Standard library only.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import queue
import shlex
import subprocess
import tempfile
import threading

LEARNED = "--effort best"
TUNED = "--effort best --learn-steps 0"


def measured(program, checkpoint, options):
    """Bytes, gap, its standard error, seconds and what tuning said, of one artifact that goes again."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, "quantize", checkpoint, "-o", os.path.join(folder, "model.thmb"), "--json", "--quiet",
                   "--no-resume", *options]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    evaluation, tuning = result["evaluation"], result.get("learn") or result.get("distill") or {}
    return {"bytes": result["artifact_bytes"], "gap": evaluation["gap_bits_per_byte"],
            "error": evaluation["gap_standard_error"], "seconds": sum(result["seconds"].values()),
            "temperature": tuning.get("target_temperature"), "kept": tuning.get("kept")}


def rows_of(path):
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {tuple(row["what"]): row for row in map(json.loads, file)}


def cell(row):
    error = f" +- {row['error']:.5f}" if row["error"] else ""
    return f"{row['gap']:.5f}{error} ({row['seconds']:.0f} s)"


class Rows:
    """Rows by what they are of, kept in a file where there is one."""

    def __init__(self, path, program, checkpoint, devices):
        self.rows, self.path, self.lock = rows_of(path), path, threading.Lock()
        self.program, self.checkpoint = program, checkpoint
        self.free = queue.Queue()  # devices; None: the program's own choice
        for device in devices:
            self.free.put(device)

    def make(self, what, options):
        if what in self.rows:
            return
        device = self.free.get()
        try:
            row = {"what": what, **measured(self.program, self.checkpoint,
                                            options + (["--device", device] if device else []))}
        finally:
            self.free.put(device)
        with self.lock:
            self.rows[what] = row
            if self.path:
                with open(self.path, "a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("checkpoint")
    parser.add_argument("--calibration-text", required=True)
    parser.add_argument("--score", required=True, help="options that say what to score")
    parser.add_argument("--bits", default="2,2.5,3,4", help="bits per weight, of all parameters")
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--tuned", default=TUNED, help="options of files whose gains are tuned")
    parser.add_argument("--learned", default=LEARNED, help="options of files whose codes are learned")
    parser.add_argument("--devices", help="as cuda:0,cuda:1: a file at a time on each")
    parser.add_argument("--output", help="file of rows, one JSON document each")
    arguments, more = parser.parse_known_args()
    texts = {"own": [], "given": ["--calibration-text", arguments.calibration_text]}
    tunings = {"tuned": shlex.split(arguments.tuned), "learned": shlex.split(arguments.learned)}
    devices = arguments.devices.split(",") if arguments.devices else [None]
    rows = Rows(arguments.output, arguments.program, arguments.checkpoint, devices)
    columns = list(itertools.product(texts, tunings))
    sizes = list(itertools.product(arguments.bits.split(","), arguments.seeds.split(",")))

    def what(size, column):
        return (arguments.checkpoint, *size, *column)

    with concurrent.futures.ThreadPoolExecutor(len(devices)) as pool:
        made = {}
        for (bits, seed), (text, tuning) in itertools.product(sizes, columns):
            options = ["--bits-per-weight", bits, "--seed", seed, *shlex.split(arguments.score), *texts[text],
                       *tunings[tuning], *more]
            key = what((bits, seed), (text, tuning))
            made[key] = pool.submit(rows.make, key, options)
        print("| bits per weight | seed | bytes | " + " | ".join(f"{text} text, {tuning}" for text, tuning in columns) +
              " |")
        print("|---" * (3 + len(columns)) + "|")
        for size in sizes:
            for column in columns:
                made[what(size, column)].result()
            found = [rows.rows[what(size, column)] for column in columns]
            cells = [*size, f"{found[0]['bytes']:,}", *map(cell, found)]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
