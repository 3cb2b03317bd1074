"""budgets.py: models of all kinds and random budgets. Method slope fills a budget to 99.9 %, or says truly why not: the
finest codes take less (more budget gives the same file), or nothing is small enough (what it names as the least will
do).
"""

import json
import re
from math import log

from harness import Case, Fault, Row
from samples import golf_config, golf_shapes, random_tensors, write_safetensors

FILL = 0.999
SAME_SIZE = 1.005


class Budgets:
    def rows(self, count: int) -> list[Row]:
        return [Row("random budgets", count, self._attempt, 300)]

    def _attempt(self, case: Case, index: int) -> None:
        random = case.random
        config = golf_config(layers=random.choice((2, 3)), width=random.choice((32, 48, 64)))
        tensors = random_tensors(golf_shapes(config), random.randrange(1 << 30))
        overflows = self._distort(tensors, random)
        write_safetensors(case.path("model.safetensors"), tensors, dtype=random.choice(("F32", "F32", "BF16")))
        case.path("config.json").write_text(json.dumps(config))
        size = case.path("model.safetensors").stat().st_size
        budget = round(2 ** random.uniform(log(max(1000, size // 40), 2), log(2 * size, 2)))
        arguments = ["quantize", "model.safetensors", "--min-elements", "100", "--calibration-sequences",
                     str(random.choice((2, 4))), "--calibration-length", "32", "--trellis-bits",
                     random.choice(("0", "3", "8")), "--distill-steps", random.choice(("0", "2")),
                     "--codec", random.choice(("rans", "rans", "rans", "zstd")), "--json"]
        run = case.expect([*arguments, "-o", "out.thmb", "--budget", str(budget)], (0, 3, 4) if overflows else (0, 3))
        if run.code == 4:  # a model whose own logits are infinite writes no calibration text
            if "logits are not finite" not in run.err:
                raise Fault(f"exit code 4 for another reason: {run.err!r}")
            return None
        if run.code == 3:
            return self._require_least(case, arguments, run.err, budget, (0, 4) if overflows else (0,))
        found, report = case.path("out.thmb").stat().st_size, json.loads(run.out)
        if found != report["artifact_bytes"]:
            raise Fault(f"{found} bytes on disk, {report['artifact_bytes']} in the report")
        if found > budget:
            raise Fault(f"{found} bytes exceed the budget of {budget}")
        if found < FILL * budget:
            self._require_largest(case, arguments, report, found, budget)

    @staticmethod
    def _distort(tensors, random) -> bool:
        """Returns whether the model's own sums may overflow."""
        kind = random.randrange(6)
        scale = 1.0
        matrices = [values for shape, values in tensors.values() if len(shape) == 2]
        if kind == 1:
            random.choice(matrices)[0] = 3e5
        elif kind in (2, 3):
            scale = random.choice((1e-10, 1e-4, 1e3, 1e10))
            for values in matrices:
                values[:] = type(values)("f", (scale * value for value in values))
        elif kind == 4:
            for values in matrices[:len(matrices) // 2]:
                values[:] = type(values)("f", bytes(4 * len(values)))
        return scale > 1e6

    @staticmethod
    def _require_largest(case: Case, arguments: list[str], report: dict, found: int, budget: int) -> None:
        if not report.get("fill_reason"):
            raise Fault(f"{found} bytes are {100 * found / budget:.1f} % of {budget}, without a reason")
        case.expect([*arguments, "-o", "more.thmb", "--budget", str(2 * budget)])
        more = case.path("more.thmb").stat().st_size
        # The finest codes solved with and without cross terms differ in size by thousandths.
        if found * SAME_SIZE < more <= budget:
            raise Fault(f"{found} bytes for a budget of {budget}, though {more} were possible")

    @staticmethod
    def _require_least(case: Case, arguments: list[str], said: str, budget: int, allowed: tuple[int, ...]) -> None:
        message = json.loads(said)["error"]["message"]
        numbers = [int(text.replace(",", "")) for text in re.findall(r"\d[\d,]*(?= B)", message)]
        least = [number for number in numbers if number > budget]
        if not least:
            raise Fault(f"budget {budget}: no number of bytes that would do in {message!r}")
        case.expect([*arguments, "-o", "least.thmb", "--budget", str(max(least))], allowed)
