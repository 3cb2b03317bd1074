"""report_browser_test.py: the pages of `quantize --report` and `sweep --report` in a real browser.

Run through ctest, which says where the programs are; skipped without Chromium (scripts/setup --dev installs it).
"""

import os
import subprocess
import tempfile
import unittest
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

from browser import Browser, find_chromium, has_colours

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "examples" / "tiny"
WIDTHS = {"phone": 390, "desktop": 1280}
VOID = {"meta", "link"}

# Texts of drawings that stick out of them, and labels of axes that lie on each other.
CUT_OFF = """
[...document.querySelectorAll('svg')].filter(svg => svg.getClientRects().length).flatMap(svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => {
    const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 ||
           box.bottom > frame.bottom + 1;
  }).map(text => text.textContent);
})
"""
OVERLAPPING = """
[...document.querySelectorAll('svg.chart')].filter(svg => svg.getClientRects().length).flatMap(svg => {
  const texts = [...svg.querySelectorAll('.tick, .label')], boxes = texts.map(text => text.getBoundingClientRect());
  return texts.filter((text, i) => boxes.some((box, j) => j < i && box.left < boxes[i].right &&
    boxes[i].left < box.right && box.top < boxes[i].bottom && boxes[i].top < box.bottom)).map(text => text.textContent);
})
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


class StructureParser(HTMLParser):
    """As a browser that is not strict about XML reads it: every element is closed by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.wrong: list[str] = []
        self.tags: set[str] = set()
        self.handlers: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in VOID:
            self.opened.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if not self.opened or self.opened.pop() != tag:
            self.wrong.append(tag)


def setUpModule() -> None:
    chromium = find_chromium()
    if chromium is None:
        raise unittest.SkipTest("Chromium is not installed")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    unittest.addModuleCleanup(folder.cleanup)
    ReportTest.folder = Path(folder.name)
    make_pages(ReportTest.folder)
    (ReportTest.folder / "profile").mkdir()
    ReportTest.browser = Browser(chromium, ReportTest.folder / "profile")
    unittest.addModuleCleanup(ReportTest.browser.close)


def make_pages(folder: Path) -> None:
    """Of the bundled model, and of made-up runs: of many layers, of hostile names, of nothing at all."""
    thimble = os.environ["THIMBLE"]
    quick = "--calibration-sequences 4 --calibration-length 64 --trellis-bits 2 --distill-steps 0".split()
    text = ["--tokens", str(TINY / "text.bin"), "--tokenizer", str(TINY / "tokenizer.model")]
    text += "--context 64 --stride 64 --max-targets 2000".split()
    model = str(TINY / "model.safetensors")
    for command in (
        ["quantize", model, "-o", str(folder / "tiny.thmb"), "--budget", "600000"],
        ["sweep", model, "-o", str(folder / "curve"), "--budgets", "1000,500000,700000"],
    ):
        report = ["--report", str(folder / f"{command[0]}.html")]
        subprocess.run([thimble, *command, *quick, *text, *report], check=True, capture_output=True)
    subprocess.run([os.environ["WRITE_REPORT_PAGES"], str(folder)], check=True)


class ReportTest(unittest.TestCase):
    folder: Path
    browser: Browser

    def pages(self) -> list[Path]:
        found = sorted(self.folder.glob("*.html"))
        self.assertEqual(len(found), 6)
        return found

    def cases(self) -> list[tuple[Path, int]]:
        return [(page, width) for page in self.pages() for width in WIDTHS.values()]

    def test_pages_load_without_errors_and_ask_for_nothing(self):
        for page, width in self.cases():
            with self.subTest(page=page.name, width=width):
                self.browser.open(page, width)
                self.assertEqual(self.browser.problems(), [])
                asked = [url for url in self.browser.requests() if not url.startswith("data:")]
                self.assertEqual(asked, [page.resolve().as_uri()])
                self.assertEqual(self.browser.evaluate("document.scripts.length"), 0)
                self.assertNotEqual(self.browser.evaluate("document.title"), "")

    def test_nothing_is_wider_than_the_screen_cut_off_or_on_top_of_another(self):
        for page, width in self.cases():
            with self.subTest(page=page.name, width=width):
                self.browser.open(page, width)
                self.assertLessEqual(self.browser.evaluate(OVERFLOW), 0)
                self.browser.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
                self.assertLessEqual(self.browser.evaluate(OVERFLOW), 0, "with all details open")
                self.assertEqual(self.browser.evaluate(CUT_OFF), [])
                self.assertEqual(self.browser.evaluate(OVERLAPPING), [])

    def test_pictures_are_not_empty_and_follow_the_colour_scheme(self):
        for page, width in self.cases():
            with self.subTest(page=page.name, width=width):
                self.browser.open(page, width)
                light = self.browser.screenshot()
                self.browser.open(page, width, dark=True)
                dark = self.browser.screenshot()
                self.assertTrue(has_colours(light, 8))
                self.assertTrue(has_colours(dark, 8))
                self.assertNotEqual(light, dark)

    def test_one_drawing_of_each_chart_is_shown(self):
        shown = "[...document.querySelectorAll('svg.chart')].filter(svg => svg.getClientRects().length).length"
        for page, width in self.cases():
            with self.subTest(page=page.name, width=width):
                self.browser.open(page, width)
                figures = self.browser.evaluate("document.querySelectorAll('figure').length")
                self.assertEqual(self.browser.evaluate(shown), figures)
                if page.name != "quantize-bare.html":
                    self.assertGreater(figures, 0)
                    self.assertGreater(self.browser.evaluate("document.querySelectorAll('.heat-map').length"), 0)

    def test_the_checks_find_what_is_wrong(self):
        (self.folder / "bad").mkdir()
        page = self.folder / "bad" / "bad.html"
        page.write_text(
            "<!DOCTYPE html><meta name='viewport' content='width=device-width'><title>bad</title>"
            "<div style='width:2000px'>wide</div><img src='missing.png'><script>nowhere()</script>"
            "<svg class='chart' width='100' height='40'><text x='80' y='20'>cut off</text>"
            "<text class='tick' x='5' y='20'>one</text><text class='tick' x='9' y='20'>two</text></svg>"
        )
        self.browser.open(page, WIDTHS["phone"])
        self.assertTrue(any("nowhere" in problem for problem in self.browser.problems()))
        self.assertEqual(len(self.browser.requests()), 2)
        self.assertGreater(self.browser.evaluate(OVERFLOW), 0)
        self.assertEqual(self.browser.evaluate(CUT_OFF), ["cut off"])
        self.assertEqual(self.browser.evaluate(OVERLAPPING), ["two"])
        page.write_text("<!DOCTYPE html><title>empty</title>")
        self.browser.open(page, WIDTHS["phone"])
        self.assertFalse(has_colours(self.browser.screenshot(), 2))

    def test_markup_is_well_formed(self):
        for page in self.pages():
            with self.subTest(page=page.name):
                text = page.read_text(encoding="utf-8")
                ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>\n"))
                parser = StructureParser()
                parser.feed(text)
                parser.close()
                self.assertEqual((parser.wrong, parser.opened, parser.handlers), ([], [], []))
                self.assertNotIn("script", parser.tags)

    def test_pages_say_what_the_run_said(self):
        self.browser.open(self.folder / "quantize.html", WIDTHS["desktop"])
        text = self.browser.evaluate("document.body.textContent")
        for words in (f"{(self.folder / 'tiny.thmb').stat().st_size:,} B", "blocks.0.attn.c_k.weight", "Peak memory",
                      "--budget", "600000", "first 2,000 of 21,454 targets"):  # fmt: skip
            self.assertIn(words, text)
        self.browser.open(self.folder / "sweep.html", WIDTHS["desktop"])
        text = self.browser.evaluate("document.body.textContent")
        for words in ("slope", "trace", "500,000 B", "the budget cannot be met", "original"):
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main()
