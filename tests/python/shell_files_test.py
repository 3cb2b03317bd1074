"""shell_files_test.py: what packages add to the program: a man page for every command, and completions of bash, which
offer what the program's own help has. Needs bash.
"""

import shutil
import subprocess
import unittest
from pathlib import Path

from program import ProgramTest

REPOSITORY = Path(__file__).resolve().parents[2]
COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
compopt() { :; }
_thimble
printf '%s\\n' "${COMPREPLY[@]}"
"""


@unittest.skipUnless(shutil.which("bash"), "there is no bash")
class ShellFilesTest(ProgramTest):
    def completions(self, *words):
        script = str(REPOSITORY / "cmake" / "completions" / "thimble.bash")
        done = subprocess.run(["bash", "-c", COMPLETE, "bash", script, self.program, *words], check=True,
                              capture_output=True, text=True)
        return done.stdout.split()

    def test_bash_completes_commands_and_options(self):
        commands = self.completions("")
        for command in ("quantize", "loader", "doctor", "--version"):
            self.assertIn(command, commands)
        self.assertEqual(self.completions("ver"), ["verify"])
        self.assertEqual(self.completions("budget", "--lim"), ["--limit"])
        self.assertIn("--with-loader", self.completions("quantize", "--with"))
        self.assertEqual(self.completions("verify", "model"), [])

    def test_every_command_has_a_man_page(self):
        subprocess.run([str(REPOSITORY / "scripts" / "man-pages"), self.program, self.path("man")], check=True)
        pages = sorted(page.name for page in Path(self.path("man")).iterdir())
        commands = [word for word in self.completions("") if not word.startswith("-")]
        self.assertEqual(pages, sorted(["thimble.1", *(f"thimble-{command}.1" for command in commands)]))
        for command in commands:
            page = Path(self.path("man"), f"thimble-{command}.1").read_text()
            self.assertIn(f".TH THIMBLE-{command.upper()} 1", page)
            self.assertIn("\\-\\-threads", page)


if __name__ == "__main__":
    unittest.main()
