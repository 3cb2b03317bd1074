#!/usr/bin/env python3
"""Times `thimble quantize` on a checkpoint, stage by stage, and prints a table against the limits we hold ourselves to.

  bench/pipeline_bench.py build/release/quantizer/thimble model.safetensors [further options of thimble quantize]

Prints a Markdown table: seconds per stage, their limit for a 30M-parameter model on 2 cores, peak memory, bytes.
Standard library only.
"""
import json
import os
import subprocess
import sys
import tempfile

LIMIT_SECONDS = {"calibration + Hessians": 720, "solve": 180, "encode": 60}
LIMIT_MEMORY_BYTES = 2_500_000_000


def quantize(program, checkpoint, options):
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "model.thmb")
        command = [program, "quantize", checkpoint, "-o", output, "--json", *options]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def row(name, value, limit, unit):
    share = f"{value / limit:.0%}" if limit else ""
    return f"| {name} | {value:,.1f} {unit} | {f'{limit:,} {unit}' if limit else ''} | {share} |"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    result = quantize(sys.argv[1], sys.argv[2], sys.argv[3:])
    seconds = result["seconds"]
    seconds["calibration + Hessians"] = seconds.get("calibration", 0) + seconds.get("Hessians", 0)
    print("| stage | measured | limit | share |\n|---|---|---|---|")
    for stage, value in seconds.items():
        print(row(stage, value, LIMIT_SECONDS.get(stage), "s"))
    print(row("peak memory", result["peak_memory_bytes"] / 1e6, LIMIT_MEMORY_BYTES // 10**6, "MB"))
    print(f"\n{result['parameters']:,} parameters, {result['original_bytes']:,} B -> {result['artifact_bytes']:,} B")


if __name__ == "__main__":
    main()
