"""loader_test.py: the program that `thimble loader` writes gives what read_thmb.py and `thimble export` do, in few bytes.

Needs numpy; with torch the program for it runs too, as it is where there is a GPU, else on the CPU, without its graph.
The checkpoints beside the repository are quantized too, golf30m where there is a GPU. Skipped where those are missing.
"""

import importlib.util
import re
import subprocess
import sys
import unittest
from pathlib import Path

from needs import needs
from program import ProgramTest

needs("numpy")

import numpy  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny"
DATA = REPOSITORY.parent / "shared" / "data"
QUICK = ["--calibration-sequences", "2", "--calibration-length", "64", "--distill-steps", "0", "--cross-term", "0",
         "--no-resume"]
MOST_BYTES = 3000
MOST_BROTLI_BYTES = 1500


def module_of(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def has_gpu():
    if not importlib.util.find_spec("torch"):
        return False
    import torch

    return torch.cuda.is_available()


def without_gpu(path):
    """Makes the program for torch one that runs on the CPU."""
    text = Path(path).read_text()
    text, graphs = re.subn(r"\n [^\n]*\.CUDAGraph\(\)\n[^\n]*\.graph\([^\n]*\n[^\n]*\.replay(?=\n)", "", text)
    assert graphs == 1
    Path(path).write_text(text.replace("'cuda'", "'cpu'"))


class LoaderTest(ProgramTest):
    def check(self, artifact):
        """That loaders of this artifact give what read_thmb.py does; their reports."""
        expected = module_of(REPOSITORY / "scripts" / "read_thmb.py").load(artifact)
        libraries = ["numpy"] + (["torch"] if importlib.util.find_spec("torch") else [])
        reports = []
        for library in libraries:
            script = self.path(f"load_{library}.py")
            report = self.thimble("loader", artifact, "-o", script, "--library", library)
            self.assertEqual(report["loader_bytes"], Path(script).stat().st_size)
            if library == "torch":
                import torch

                if not has_gpu():
                    torch.set_num_threads(1)  # its tensors are small
                    without_gpu(script)
            found = module_of(script).load(artifact)
            self.assertEqual(sorted(found), sorted(expected))
            for name, values in expected.items():
                tensor = found[name].cpu().numpy() if library == "torch" else found[name]
                self.assertEqual((tensor.shape, tensor.dtype), (values.shape, values.dtype), name)
                self.assertTrue(numpy.array_equal(tensor, values), name)
            reports.append(report)
        return reports

    def refused(self, artifact, *words):
        done = subprocess.run([self.program, "loader", artifact, "-o", self.path("no.py")], capture_output=True,
                              text=True, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse(Path(self.path("no.py")).exists())

    def test_a_loader_gives_the_same_tensors(self):
        for budget, more in (("600000", []), ("250000", ["--portable"])):
            with self.subTest(budget=budget, more=more):
                artifact = self.path("tiny.thmb")
                self.thimble("quantize", str(TINY), "-o", artifact, "--budget", budget, *QUICK, *more)
                for report in self.check(artifact):
                    self.assertLess(report["loader_bytes"], MOST_BYTES)

    def test_it_counts_against_a_budget(self):
        artifact = self.path("tiny.thmb")
        made = self.thimble("quantize", str(TINY), "-o", artifact, "--budget", "400000", "--with-loader", *QUICK)
        loader = self.thimble("loader", artifact, "-o", self.path("load.py"))["loader_bytes"]
        self.assertLessEqual(loader, made["code_bytes"])
        self.assertLess(made["code_bytes"], MOST_BYTES)
        budget = self.thimble("budget", artifact, "--limit", "400000", "--with-loader", "--code-bytes", "7")
        self.assertEqual(budget["code_bytes"], loader + 7)

    def test_other_artifacts_are_refused(self):
        artifact = self.path("tiny.thmb")
        self.thimble("quantize", str(TINY), "-o", artifact, "--method", "trace", "--calibration-sequences", "2",
                     "--calibration-length", "64", "--no-resume")
        self.refused(artifact, "is stored as int", "only trellises are read")
        stored = REPOSITORY / "tests" / "packer" / "artifacts" / "slope-brotli.thmb"
        self.refused(str(stored), "slope-brotli.thmb: no loader for this artifact")

    def test_the_template_is_made_of_the_source(self):
        needs("python_minifier")
        maker = REPOSITORY / "scripts" / "make_loader"
        done = subprocess.run([sys.executable, str(maker), "--check"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_models_beside_the_repository(self):
        for name, minutes_without_gpu in (("llama-small", False), ("golf30m", True)):
            with self.subTest(model=name):
                if not (DATA / name).exists():
                    self.skipTest(f"there is no {DATA / name}")
                if minutes_without_gpu and not has_gpu():
                    self.skipTest("this takes minutes without a GPU")
                artifact = self.path("model.thmb")
                self.thimble("quantize", str(DATA / name), "-o", artifact, "--bits-per-weight", "3", *QUICK)
                for report in self.check(artifact):
                    self.assertLess(report["loader_bytes"], MOST_BYTES)
                    self.assertLess(report["brotli_bytes"], MOST_BROTLI_BYTES)


if __name__ == "__main__":
    unittest.main()
