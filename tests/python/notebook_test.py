"""notebook_test.py: every cell of examples/notebook.ipynb runs, and it draws its curve and its map.

Run without Jupyter: the cells' code, one after the other. Skipped where thimble, torch or safetensors is missing.
"""

import ast
import json
import os
import tempfile
import unittest
from pathlib import Path

from needs import needs

needs("thimble", "torch", "safetensors")

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook.ipynb"


class NotebookTest(unittest.TestCase):
    def shown_by(self, source, names):
        """Runs a cell; what Jupyter would show of its last expression."""
        tree = ast.parse(source)
        last = tree.body.pop().value if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(NOTEBOOK), "exec"), names)
        return None if last is None else eval(compile(ast.Expression(last), str(NOTEBOOK), "eval"), names)

    def test_cells_run_and_draw(self):
        notebook = json.loads(NOTEBOOK.read_text())
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        with tempfile.TemporaryDirectory() as folder:
            self.addCleanup(os.chdir, os.getcwd())
            os.chdir(folder)
            os.symlink(NOTEBOOK.parents[1] / "examples", "examples")
            os.symlink(NOTEBOOK.parents[1] / "scripts", "scripts")
            names = {}
            shown = [self.shown_by(cell, names) for cell in cells]
            losses = [loss for _, loss in names["points"]]
            self.assertEqual(losses, sorted(losses, reverse=True))
            for (size, _), budget in zip(names["points"], (400_000, 600_000, 900_000)):
                self.assertLessEqual(size, budget)
            drawn = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
            self.assertEqual(len(drawn), 3)
            self.assertEqual(drawn[0].count("<circle"), 3)
            self.assertGreater(drawn[1].count("<tr>"), 20)
            os.chdir(NOTEBOOK.parent)


if __name__ == "__main__":
    unittest.main()
