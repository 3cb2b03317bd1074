"""program.py: tests that run the program on files of a temporary folder."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

from needs import thimble_program


class ProgramTest(unittest.TestCase):
    def setUp(self):
        self.program = thimble_program()
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return str(Path(self.folder.name) / name)

    def thimble(self, *arguments):
        """Runs it, which must succeed; its answer in JSON."""
        done = subprocess.run([self.program, *arguments, "--json"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)
