#!/usr/bin/env python3
"""Quantizes one model with other programs and with thimble at the same whole-file bytes, and scores all of them.

  bench/rivals.py MODEL --text TEXT --calibration SHARD --out FOLDER [--rivals llama.cpp hqq auto-round nncodec]
      [--llama-include DIR...] [--llama-library DIR] [--program build/release/quantizer/thimble]

MODEL is a folder of Hugging Face. All are calibrated on the same tokens, whole sequences of --calibration-length, and
scored by `thimble eval` on the same text: the gap in bits per byte to the original, and the divergence of their
predictions from its. A rival's file also counts after xz -9e. FOLDER/results.json grows with every result, so that a
run goes on where another ended; FOLDER/rivals.md has the tables, FOLDER/rivals.svg the curve where gnuplot is
installed. Rivals whose packages are missing are named and left out.
"""
import argparse
import importlib
import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "rivals"))

MODULES = {"llama.cpp": "llama_cpp", "hqq": "hqq_rival", "auto-round": "auto_round_rival", "nncodec": "nncodec_rival"}
HEADER_BYTES = 1024
WIDE_MAGIC = 20240801
DECIDED_BY_DIVERGENCE = 0.002  # gaps below this are noise on most texts


def read_shard(path):
    raw = Path(path).read_bytes()
    wide = int.from_bytes(raw[:4], "little") == WIDE_MAGIC
    return np.frombuffer(raw[HEADER_BYTES:], "<u4" if wide else "<u2")


class Run:
    def __init__(self, options):
        self.options = options
        self.folder = Path(options.out)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / "results.json"
        self.results = json.loads(self.path.read_text()) if self.path.exists() else []
        options.is_wanted = lambda rival, setting: not self.find(rival, setting)

    def find(self, rival, setting):
        return next((r for r in self.results if (r["rival"], r["setting"]) == (rival, setting)), None)

    def thimble(self, *arguments):
        done = subprocess.run([self.options.program, *map(str, arguments), "--json"], check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)

    def score(self, path):
        """Of the original and what was made of it, on the text."""
        options = self.options
        tokenizer = ["--tokenizer", options.tokenizer] if options.tokenizer else []
        limit = ["--max-targets", options.max_targets] if options.max_targets else []
        config = ["--config", Path(options.model) / "config.json"]
        original, other = self.thimble("eval", options.model, path, "--divergence", "--text", options.text, *tokenizer,
                                       *limit, *config)["evaluations"]
        return {"original_bpb": original["bits_per_byte"], "scope": other["scope"], "context": other["context"],
                "stride": other["stride"], "gap": other["gap_bits_per_byte"], "error": other["gap_standard_error"],
                "kl": other["divergence"]["mean_nats"], "same_top": other["divergence"]["same_top"]}

    def keep(self, result):
        self.results.append(result)
        self.path.write_text(json.dumps(self.results, indent=1) + "\n")
        print(f"{result['rival']} {result['setting']}: {result['file_bytes']:,} B, gap {result['gap']:+.6f}, KL "
              f"{result['kl']:.6f}", flush=True)

    def rivals(self):
        for rival in self.options.rivals:
            try:
                module = importlib.import_module(MODULES[rival])
                versions = module.versions(self.options)
                for found in module.candidates(self.options, self.folder):
                    self.keep({**asdict(found), **self.score(found.weights), "versions": versions})
            except (ImportError, importlib.metadata.PackageNotFoundError) as missing:
                print(f"{rival}: left out, {missing}", flush=True)

    def ours(self):
        """At the bytes of every rival's file."""
        version = subprocess.run([self.options.program, "--version"], check=True, capture_output=True, text=True).stdout
        sizes = sorted({r["file_bytes"] for r in self.results if r["rival"] != "thimble"})
        for size in sizes:
            setting = f"budget {size}"
            if self.find("thimble", setting):
                continue
            artifact = self.folder / f"thimble-{size}.thmb"
            report = self.thimble("quantize", self.options.model, "-o", artifact, "--budget", size,
                                  "--calibration-tokens", self.options.calibration, "--calibration-length",
                                  self.options.calibration_length, *self.options.quantize)
            self.keep({"rival": "thimble", "setting": setting, "file_bytes": artifact.stat().st_size,
                       "xz_bytes": artifact.stat().st_size, "weights": str(artifact), "notes": "",
                       "versions": version.strip(), "seconds": report.get("seconds"), **self.score(artifact)})
            artifact.unlink()


def bytes_at(points, loss):
    """Bytes at which the curve through (bytes, loss) has this loss, log-linear between points; None beyond them."""
    points = sorted(points)
    for (low, above), (high, below) in zip(points, points[1:]):
        if above >= loss >= below > 0:
            share = 0.0 if above == below else (math.log(above) - math.log(loss)) / (math.log(above) - math.log(below))
            return low + share * (high - low)
    return None


def best_rival_bytes(others, loss):
    """The smallest of the rivals' files, packed or not, that loses no more."""
    return min((min(r["file_bytes"], r["xz_bytes"]) for r in others if r["loss"] <= loss), default=None)


def tables(run, parameters):
    ours = [r for r in run.results if r["rival"] == "thimble"]
    others = [r for r in run.results if r["rival"] != "thimble"]
    lines = ["| rival | setting | bytes | after xz | bits per weight | gap, BPB | KL, nats | thimble's gap | its KL | "
             "gap of rival's | KL of rival's | bytes at equal KL |",
             "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"]
    for r in sorted(others, key=lambda r: r["file_bytes"]):
        mine = run.find("thimble", f"budget {r['file_bytes']}")
        if not mine:
            continue
        error = f" ± {r['error']:.4f}" if r["error"] is not None else ""
        decided = "" if abs(r["gap"]) >= DECIDED_BY_DIVERGENCE else " (KL decides)"
        equal = bytes_at([(m["file_bytes"], m["kl"]) for m in ours], r["kl"])
        best = min(r["file_bytes"], r["xz_bytes"])
        lines.append(
            f"| {r['rival']} | {r['setting']}{' (' + r['notes'] + ')' if r['notes'] else ''} | {r['file_bytes']:,} | "
            f"{r['xz_bytes']:,} | {8 * r['file_bytes'] / parameters:.2f} | {r['gap']:+.4f}{error}{decided} | "
            f"{r['kl']:.4f} | {mine['gap']:+.4f} | {mine['kl']:.4f} | {100 * mine['gap'] / r['gap']:.0f} % | "
            f"{100 * mine['kl'] / r['kl']:.0f} % | {f'{100 * equal / best:.0f} %' if equal else '-'} |")
    lines += ["", "Against the best rival at each loss, packed with xz where that is smaller:", "",
              "| thimble, bytes | gap, BPB | KL, nats | best rival at this gap, bytes | thimble's of these | best rival at "
              "this KL, bytes | thimble's of these |", "|--:|--:|--:|--:|--:|--:|--:|"]
    for mine in sorted(ours, key=lambda r: r["file_bytes"]):
        cells = []
        for key in ("gap", "kl"):
            best = best_rival_bytes([{**r, "loss": r[key]} for r in others], mine[key])
            cells += [f"{best:,}", f"{100 * mine['file_bytes'] / best:.0f} %"] if best else ["-", "-"]
        lines.append(f"| {mine['file_bytes']:,} | {mine['gap']:+.4f} | {mine['kl']:.4f} | {' | '.join(cells)} |")
    return lines


def curve(run):
    if not shutil.which("gnuplot"):
        return
    names = sorted({r["rival"] for r in run.results})
    script = ["set terminal svg size 800,520 font 'sans,12'", f"set output '{run.folder / 'rivals.svg'}'",
              "set logscale y", "set xlabel 'bytes of the file'", "set ylabel 'KL divergence, nats per token'", "set grid"]
    script.append("plot " + ", ".join(f"'-' with linespoints title '{name}'" for name in names))
    for name in names:
        points = sorted((r["file_bytes"], r["kl"]) for r in run.results if r["rival"] == name)
        script += [f"{x} {y}" for x, y in points] + ["e"]
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model")
    options.add_argument("--text", required=True)
    options.add_argument("--calibration", required=True, help="token shard, as `thimble tokenize` writes it")
    options.add_argument("--calibration-length", type=int, default=1024)
    options.add_argument("--out", required=True)
    options.add_argument("--tokenizer", default="", help="where the folder has none")
    options.add_argument("--max-targets", type=int)
    options.add_argument("--rivals", nargs="+", choices=MODULES, default=list(MODULES))
    options.add_argument("--types", nargs="+", help="of llama.cpp")
    options.add_argument("--llama-include", nargs="+", default=[])
    options.add_argument("--llama-library", default="")
    options.add_argument("--quantize", nargs=argparse.REMAINDER, default=[], help="further options of thimble quantize")
    options.add_argument("--program", default=str(ROOT / "build/release/quantizer/thimble"))
    options = options.parse_args()
    tokens = read_shard(options.calibration)
    options.calibration_ids = tokens[:len(tokens) // options.calibration_length * options.calibration_length]
    run = Run(options)
    run.rivals()
    run.ours()
    parameters = run.thimble("inspect", options.model)["parameters"]
    scored = run.results[0]
    text = [f"Original: {scored['original_bpb']:.6f} BPB; {scored['scope']}, context {scored['context']}, stride "
            f"{scored['stride']}; {len(options.calibration_ids):,} calibration tokens.",
            "Versions: " + "; ".join(sorted({r["versions"] for r in run.results})) + ".", "", *tables(run, parameters)]
    (run.folder / "rivals.md").write_text("\n".join(text) + "\n")
    curve(run)


if __name__ == "__main__":
    main()
