"""comparison.py: tables, curve and the two goals, from what bench/rivals.py kept.

  comparison.py results.json FOLDER      writes rivals.md and rivals.svg there

A row has rival, setting, file_bytes, xz_bytes, gap (bits per byte), kl (nats per token) and more, or failed (a reason).
"""

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

DECIDED_BY_DIVERGENCE = 0.002  # a rival's gap below this is noise on most texts: KL divergence decides
GAP_GOAL = 0.70    # of a rival's gap, at its bytes
BYTES_GOAL = 0.80  # of the best rival's bytes, at equal gap
GOAL_RIVAL, BEYOND_GOAL = "llama.cpp", ("Q8_0",)  # the goals hold for its types from IQ2 to Q6_K


def scored(rows):
    return [row for row in rows if "failed" not in row]


def ours_of(rows):
    return sorted((r for r in scored(rows) if r["rival"] == "thimble"), key=lambda r: r["file_bytes"])


def others_of(rows):
    return sorted((r for r in scored(rows) if r["rival"] != "thimble"), key=lambda r: r["file_bytes"])


def decider(row):
    """What is compared with this rival: gap or kl."""
    return "gap" if row["gap"] >= DECIDED_BY_DIVERGENCE else "kl"


def bytes_at(ours, key, loss):
    """Bytes at which thimble's curve has this loss, log-linear between points; None beyond them."""
    for low, high in zip(ours, ours[1:]):
        above, below = low[key], high[key]
        if above >= loss >= below > 0:
            share = 0.0 if above == below else math.log(above / loss) / math.log(above / below)
            return low["file_bytes"] + share * (high["file_bytes"] - low["file_bytes"])
    return None


def loss_at(ours, key, size):
    """Loss of thimble's curve at these bytes, log-linear between points; None beyond them."""
    for low, high in zip(ours, ours[1:]):
        if low["file_bytes"] <= size <= high["file_bytes"] and min(low[key], high[key]) > 0:
            share = (size - low["file_bytes"]) / max(1, high["file_bytes"] - low["file_bytes"])
            return low[key] * (high[key] / low[key]) ** share
    return None


def at_its_bytes(rows, row, key):
    """(thimble's loss at the bytes of a rival's file, whether it was measured there)."""
    exact = next((r for r in ours_of(rows) if r["setting"] == f"budget {row['file_bytes']}"), None)
    return (exact[key], True) if exact else (loss_at(ours_of(rows), key, row["file_bytes"]), False)


def smallest(row):
    return min(row["file_bytes"], row["xz_bytes"])


def best_rival(rows, key, loss):
    """The smallest of the rivals' files, packed or not, that loses no more."""
    return min((r for r in others_of(rows) if r[key] <= loss), key=smallest, default=None)


def reaches_all(rows):
    """Whether thimble's curve has losses as large as all that the goals compare it with."""
    ours = ours_of(rows)
    goal_rows = [row for row in others_of(rows) if row["rival"] == GOAL_RIVAL]
    return all(any(mine[decider(row)] >= row[decider(row)] for mine in ours) for row in goal_rows)


def share(part, whole):
    return part / whole if part is not None and whole > 0 else None


def percent(value, mark=""):
    return "-" if value is None else f"{100 * value:.0f} %{mark}"


def goals(rows):
    """Of each type that the goals hold for: what decides, the share of its loss, and of the best rival's bytes."""
    found = []
    for row in others_of(rows):
        if row["rival"] != GOAL_RIVAL or row["setting"] in BEYOND_GOAL:
            continue
        key = decider(row)
        mine, measured = at_its_bytes(rows, row, key)
        best = best_rival(rows, key, row[key])
        size = bytes_at(ours_of(rows), key, row[key])
        found.append({"setting": row["setting"], "file_bytes": row["file_bytes"], "decided_by": key, "loss": row[key],
                      "thimble_loss": mine, "measured": measured, "share_of_loss": share(mine, row[key]),
                      "best_rival": f"{best['rival']} {best['setting']}", "best_rival_bytes": smallest(best),
                      "thimble_bytes": size, "share_of_bytes": share(size, smallest(best)),
                      "share_of_its_bytes": share(size, smallest(row))})
    return found


def verdict(found, key, goal, what):
    shares = [(g[key], g["setting"]) for g in found if g[key] is not None]
    met = sum(value <= goal for value, _ in shares)
    worst = f", worst {percent(max(shares)[0])} ({max(shares)[1]})" if shares else ""
    unknown = f", {len(found) - len(shares)} unknown" if len(shares) < len(found) else ""
    passes = "NOT met" if met < len(shares) else "met" if found and met == len(found) else "open"
    return f"- {what}, goal at most {percent(goal)}: {passes}, {met} of {len(found)} types{worst}{unknown}."


def goal_lines(rows):
    found = goals(rows)
    lines = ["## Goals", "", verdict(found, "share_of_loss", GAP_GOAL, "Thimble's gap at the bytes of each type"),
             verdict(found, "share_of_bytes", BYTES_GOAL, "Thimble's bytes at equal gap, of the best rival's"),
             verdict(found, "share_of_its_bytes", BYTES_GOAL, "The same, of the type's own"), "",
             f"KL divergence decides where the rival's gap is below {DECIDED_BY_DIVERGENCE}. Thimble's bytes at equal "
             "loss are interpolated between its own points, log loss against bytes. The best rival is the smallest "
             "file, after xz -9e where that is smaller, that loses no more.", "",
             "| type | decided by | loss | thimble's at its bytes | share | best rival at this loss | its bytes | "
             "thimble's bytes | share | of the type's own |", "|---|---|--:|--:|--:|---|--:|--:|--:|--:|"]
    for g in found:
        mine = "-" if g["thimble_loss"] is None else f"{g['thimble_loss']:.5f}"
        size = "-" if g["thimble_bytes"] is None else f"{g['thimble_bytes']:,.0f}"
        lines.append(f"| {g['setting']} | {g['decided_by']} | {g['loss']:.5f} | {mine} | "
                     f"{percent(g['share_of_loss'], '' if g['measured'] else '*')} | {g['best_rival']} | "
                     f"{g['best_rival_bytes']:,} | {size} | {percent(g['share_of_bytes'])} | "
                     f"{percent(g['share_of_its_bytes'])} |")
    if any(not g["measured"] and g["thimble_loss"] is not None for g in found):
        lines += ["", "\\* interpolated between thimble's points"]
    return lines


def rival_lines(rows, parameters):
    lines = ["## Rivals, and thimble at their bytes", "",
             "| rival | setting | bytes | bits per weight | after xz | gap, BPB | KL, nats | same top | "
             "thimble's gap | its KL | of the gap | of the KL | stored as |",
             "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"]
    for r in others_of(rows):
        (gap, measured), (kl, _) = at_its_bytes(rows, r, "gap"), at_its_bytes(rows, r, "kl")
        mark = "" if measured else "*"
        gap_text, kl_text = ("-" if v is None else f"{v:+.4f}{mark}" for v in (gap, kl))
        error = f" ± {r['error']:.4f}" if r["error"] is not None else ""
        bits = 8 * r["file_bytes"] / parameters
        lines.append(f"| {r['rival']} | {r['setting']} | {r['file_bytes']:,} | {bits:.2f} | {r['xz_bytes']:,} | "
                     f"{r['gap']:+.4f}{error} | {r['kl']:.5f} | {percent(r['same_top'])} | {gap_text} | "
                     f"{kl_text.lstrip('+')} | {percent(share(gap, r['gap']))} | {percent(share(kl, r['kl']))} | "
                     f"{r['notes']} |")
    lines += ["", "\\* interpolated between thimble's points", ""]
    return lines


def our_lines(rows, parameters):
    lines = ["## Thimble", "", "| bytes | bits per weight | gap, BPB | KL, nats | same top | seconds |",
             "|--:|--:|--:|--:|--:|--:|"]
    for r in ours_of(rows):
        bits = 8 * r["file_bytes"] / parameters
        lines.append(f"| {r['file_bytes']:,} | {bits:.2f} | {r['gap']:+.5f} | {r['kl']:.5f} | "
                     f"{percent(r['same_top'])} | {r['seconds']:.0f} |")
    return [*lines, ""]


def failure_lines(rows):
    failed = [r for r in rows if "failed" in r]
    if not failed:
        return []
    return ["## Not measured", "", "| rival | setting | why |", "|---|---|---|",
            *(f"| {r['rival']} | {r['setting']} | {r['failed'].replace('|', '/')} |" for r in failed), ""]


def tables(rows, parameters):
    return [*goal_lines(rows), "", *rival_lines(rows, parameters), *our_lines(rows, parameters), *failure_lines(rows)]


def kind_of(row):
    """A line of the chart: llama.cpp's types by how they are made."""
    if row["rival"] != "llama.cpp":
        return row["rival"]
    setting = row["setting"]
    return "llama.cpp IQ" if setting.startswith("IQ") else "llama.cpp K" if "_K" in setting else "llama.cpp Q_0, Q_1"


HOLLOW = (4, 6, 8, 10, 12)  # gnuplot's marks


def curve(rows, name, path):
    """KL divergence against bytes, drawn as `thimble sweep` draws; nothing where gnuplot is not installed."""
    if not shutil.which("gnuplot") or not scored(rows):
        return
    kinds = sorted({kind_of(r) for r in scored(rows)}, key=lambda kind: (kind != "thimble", kind))
    script = ["set terminal svg size 820,520 noenhanced font 'sans,13' background '#ffffff'", f"set output '{path}'",
              f"set title '{name}'", "set xlabel 'MB (1,000,000 B), whole file'",
              "set ylabel 'KL divergence from the original, nats per token'", "set logscale y", "set format y '%g'",
              "set grid linetype 1 linecolor '#e0e0e0'", "set key top right",
              "set offsets graph 0.05, graph 0.05, graph 0.05, graph 0.05"]
    for i, kind in enumerate(kinds):
        points = sorted((r["file_bytes"] / 1e6, r["kl"]) for r in scored(rows) if kind_of(r) == kind and r["kl"] > 0)
        script += [f"$curve{i} << EOD", *(f"{x:.6f} {y:.8f}" for x, y in points), "EOD"]
    marks = ("linespoints linewidth 2 pointtype 7" if kind == "thimble" else
             f"points linewidth 2 pointtype {HOLLOW[i % len(HOLLOW)]} linecolor {i + 1}"
             for i, kind in enumerate(kinds))
    script.append("plot " + ", ".join(f"$curve{i} using 1:2 with {mark} title '{kind}'"
                                      for i, (kind, mark) in enumerate(zip(kinds, marks))))
    subprocess.run(["gnuplot"], input="\n".join(script) + "\n", text=True, check=False)


def write_report(kept, out):
    setup, rows = kept["setup"], kept["rows"]
    text = [f"# {setup['model']}, {kept['parameters']:,} parameters", ""]
    for row in scored(rows)[:1]:
        text += [f"Original: {row['original_bpb']:.6f} BPB; {row['scope']} of {setup['text']}, context "
                 f"{row['context']}, stride {row['stride']}. Calibrated on {setup['calibration']}.", ""]
    text += ["Versions: " + "; ".join(sorted({r["versions"] for r in scored(rows)})) + ".", "",
             f"Options of thimble: quantize `{setup['quantize']}`, eval `{setup['score']}`.", "",
             *tables(rows, kept["parameters"])]
    (Path(out) / "rivals.md").write_text("\n".join(text) + "\n")
    curve(rows, setup["model"], Path(out) / "rivals.svg")


if __name__ == "__main__":
    write_report(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2])
