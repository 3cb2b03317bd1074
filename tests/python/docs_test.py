"""docs_test.py: the links of every Markdown file lead somewhere, and the command-line reference knows every option.

Run with python3 tests/python/run_file.py tests/python/docs_test.py. Links to other sites are not followed. The options
are those of the program that THIMBLE names; without it that test is skipped.
"""

import os
import re
import subprocess
import unicodedata
import unittest
from pathlib import Path

from needs import thimble_program

REPOSITORY = Path(__file__).resolve().parents[2]
REFERENCE = REPOSITORY / "docs" / "reference" / "command_line.md"

# Folders of builds and of version control, at any depth.
FOREIGN_FOLDERS = re.compile(r"\..*|build.*|_.*")
# [text](target) and ![text](target); a title in quotes may follow the target.
LINK = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)(?:\s+\"[^\"]*\")?\s*\)")
FENCE = re.compile(r"^ {0,3}(```|~~~)")
HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$")
CODE_SPAN = re.compile(r"`[^`]*`")
EXTERNAL = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# The option that a line of help is about.
OPTION = re.compile(r"^ +(?:-\w, ?)?(--[a-z][a-z0-9-]*)", re.MULTILINE)
# Paths of documents in comments and help texts: docs/method.md.
MENTION = re.compile(r"\b(?:docs|examples)/[\w./-]+\.md\b")
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".py", ".txt", ".cmake", ".in", ""}
SOURCE_FOLDERS = ("bench", "cmake", "eval", "gptq", "packer", "quantizer", "runtime", "scripts", "tests")


def files_of(root, is_wanted):
    found = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not FOREIGN_FOLDERS.fullmatch(name)]
        found += [Path(folder) / name for name in names if is_wanted(Path(name))]
    return sorted(found)


def prose_lines(text):
    """(line number, line) of what is not in a fenced block."""
    fence = ""
    for number, line in enumerate(text.splitlines(), start=1):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark.group(1)
        elif mark and mark.group(1) == fence:
            fence = ""
        elif not fence:
            yield number, line


def anchor_of(heading):
    """GitHub's anchor: lower case, punctuation but - and _ dropped, a hyphen for every space."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    kept = (c for c in text if c in " -_" or unicodedata.category(c)[0] in "LNM")
    return "".join(kept).replace(" ", "-")


def anchors_of(text):
    anchors, counts = set(), {}
    for _, line in prose_lines(text):
        if heading := HEADING.match(line):
            anchor = anchor_of(heading.group(2))
            repeats = counts.get(anchor, 0)
            counts[anchor] = repeats + 1
            anchors.add(f"{anchor}-{repeats}" if repeats else anchor)
    return anchors


def broken_links(path, root):
    """A sentence per link of this file that leads nowhere inside root."""
    broken = []
    for number, line in prose_lines(path.read_text(encoding="utf-8")):
        for target in LINK.findall(CODE_SPAN.sub("", line)):
            if EXTERNAL.match(target):
                continue
            name, _, anchor = target.partition("#")
            to = (path.parent / name).resolve() if name else path
            where = f"{path.relative_to(root)}:{number}: {target}: "
            if not to.exists():
                broken.append(where + "no such file")
            elif root not in (to, *to.parents):
                broken.append(where + "outside the repository")
            elif anchor and anchor not in anchors_of(to.read_text(encoding="utf-8")):
                broken.append(where + "no such heading")
    return broken


class LinkTest(unittest.TestCase):
    def test_links_and_anchors_lead_somewhere(self):
        documents = files_of(REPOSITORY, lambda name: name.suffix == ".md")
        self.assertGreater(len(documents), 10)
        broken = [problem for path in documents for problem in broken_links(path, REPOSITORY)]
        self.assertEqual(broken, [], "\n".join(broken))

    def test_documents_named_in_the_source_are_there(self):
        broken = []
        for folder in SOURCE_FOLDERS:
            for path in files_of(REPOSITORY / folder, lambda name: name.suffix in SOURCE_SUFFIXES):
                for mention in MENTION.findall(path.read_text(encoding="utf-8", errors="replace")):
                    if path != Path(__file__).resolve() and not (REPOSITORY / mention).exists():
                        broken.append(f"{path.relative_to(REPOSITORY)}: {mention}")
        self.assertEqual(broken, [], "\n".join(broken))

    def test_every_document_is_reached_from_the_readme(self):
        reached, waiting = set(), [REPOSITORY / "README.md"]
        while waiting:
            path = waiting.pop()
            if path in reached or path.suffix != ".md" or not path.exists():
                continue
            reached.add(path)
            for _, line in prose_lines(path.read_text(encoding="utf-8")):
                targets = (target.partition("#")[0] for target in LINK.findall(CODE_SPAN.sub("", line)))
                waiting += [(path.parent / name).resolve() for name in targets if name and not EXTERNAL.match(name)]
        lost = sorted(set(files_of(REPOSITORY / "docs", lambda name: name.suffix == ".md")) - reached)
        self.assertEqual([str(path.relative_to(REPOSITORY)) for path in lost], [])

    def test_anchors_are_those_of_github(self):
        text = "# A, b: `c_d`\n## Same\n## Same\n```\n# no heading\n```\n## 6. Steps: [one](x.md) slope ½\n"
        self.assertEqual(anchors_of(text), {"a-b-c_d", "same", "same-1", "6-steps-one-slope-½"})


def help_text(*arguments):
    return subprocess.run([thimble_program(), *arguments], capture_output=True, text=True, check=True).stdout


class CommandLineTest(unittest.TestCase):
    def test_the_reference_has_every_command_and_option(self):
        reference = REFERENCE.read_text(encoding="utf-8")
        sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", reference, re.MULTILINE | re.DOTALL))
        documented = set(re.findall(r"--[a-z][a-z0-9-]*", reference))
        commands = re.findall(r"^  ([a-z]+) {2,}\S", help_text("--help"), re.MULTILINE)
        self.assertGreater(len(commands), 5)
        for command in commands:
            with self.subTest(command=command):
                self.assertIn(command, sections)
                options = set(OPTION.findall(help_text(command, "--help-all")))
                self.assertGreater(len(options), 3)
                self.assertEqual(sorted(options - documented), [])


if __name__ == "__main__":
    unittest.main()
