#!/usr/bin/env python3
"""Times the page of examples/browser in headless Chromium on one artifact, and compares with what we hold ourselves to.

  bench/browser_bench.py build/browser MODEL.thmb [--tokenizer FILE] [--repeat N]

build/browser is what `scripts/browser-demo --no-serve` leaves. Prints a Markdown table: milliseconds from the click to
the weights, millions of weights per second while decoding (one core), and the memory that all takes at its peak besides
what comes out: the module's memory and the bytes of the file that are held at once, less the weights. Rows: the page
without a tokenizer, which keeps integers and their scales; with one, ready to continue texts; and the module alone, all
values in float32; float32 needs the scales, which come last, so that this row holds the whole file, and has no limit of
memory. The median of N runs (5). Exit code 1 where a limit is missed. Standard library and Chromium only.
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))

from browser import Browser, Server, find_chromium  # noqa: E402: a module of the tests

MOST_MILLISECONDS = 2000
LEAST_MILLIONS = 30
MOST_EXTRA_BYTES = 8_000_000

SETTLED = "!['loading', 'empty'].includes(document.body.dataset.state)"
ALL_VALUES = """
(async () => {
  const { Artifact, Decoder } = await import('./thimble.mjs'), { GrowingBytes } = await import('./bytes.mjs');
  const module = await WebAssembly.compile(await (await fetch('thimble_model.wasm')).arrayBuffer());
  const began = performance.now();
  const decoder = await Decoder.load(module);
  const file = GrowingBytes.ofFile(document.getElementById('artifact-file').files[0]);
  const artifact = await Artifact.open(decoder, file);
  let bytes = 0, weights = 0;
  const kept = [];
  for (const tensor of artifact.tensors) {
    kept.push(await artifact.keepValues(tensor, 'F32'));
    bytes += kept.at(-1).bytes;
    weights += tensor.elements;
  }
  await artifact.check();
  return { clickMilliseconds: performance.now() - began, decodeMilliseconds: decoder.busyMilliseconds, weights,
    memoryBytes: decoder.memoryBytes, heldBytes: file.mostHeld, weightBytes: bytes };
})()
"""


def choose(browser, name, path):
    root = browser.call("DOM.getDocument")["root"]["nodeId"]
    node = browser.call("DOM.querySelector", nodeId=root, selector=f"#{name}")["nodeId"]
    browser.call("DOM.setFileInputFiles", files=[str(Path(path).resolve())], nodeId=node)


def page_run(browser, address, options, tokenizer):
    browser.open(address, 1280)
    choose(browser, "artifact-file", options.artifact)
    if tokenizer:
        choose(browser, "tokenizer-file", tokenizer)
    browser.evaluate("document.getElementById('load-own').click()")
    browser.wait_for(SETTLED)
    if browser.evaluate("document.body.dataset.state") == "failed":
        sys.exit(browser.evaluate("document.getElementById('error').textContent"))
    data = browser.evaluate("({...document.body.dataset})")
    return {name: float(value) for name, value in data.items() if name != "state" and value != "null"}


def module_run(browser, address, options):
    browser.open(address, 1280)
    choose(browser, "artifact-file", options.artifact)
    return browser.evaluate(ALL_VALUES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("artifact")
    parser.add_argument("--tokenizer")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    chromium = find_chromium() or sys.exit("Chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser, server = Browser(chromium, Path(profile)), Server(Path(options.page))
        cases = {"page, integers and scales": lambda: page_run(browser, server.address, options, None)}
        if options.tokenizer:
            cases["page, ready for texts"] = lambda: page_run(browser, server.address, options, options.tokenizer)
        cases["module, float32"] = lambda: module_run(browser, server.address, options)
        is_met = True
        print("| run | click to weights, ms | M weights/s | weights, B | peak memory besides, B |\n|---|--:|--:|--:|--:|")
        for name, run in cases.items():
            runs = [run() for _ in range(options.repeat)]
            milliseconds = statistics.median(run["clickMilliseconds"] for run in runs)
            millions = statistics.median(run["weights"] / run["decodeMilliseconds"] / 1e3 for run in runs)
            kept = runs[0].get("weightBytes")
            peak = max(run["memoryBytes"] + run.get("heldBytes", 0) for run in runs)
            extra = peak - kept if kept else None
            columns = [f"{milliseconds:,.0f}", f"{millions:.1f}", f"{kept:,.0f}" if kept else ""]
            columns.append(f"{extra:,.0f}" if kept else f"{peak:,.0f} in all")
            print(f"| {name} | {' | '.join(columns)} |")
            is_met &= milliseconds <= MOST_MILLISECONDS and millions >= LEAST_MILLIONS
            is_met &= "integers" not in name or extra <= MOST_EXTRA_BYTES
        print(f"\nlimits: {MOST_MILLISECONDS:,} ms, {LEAST_MILLIONS} M weights/s, {MOST_EXTRA_BYTES:,} B: "
              f"{'met' if is_met else 'missed'}")
        server.close()
        browser.close()
    sys.exit(0 if is_met else 1)


if __name__ == "__main__":
    main()
