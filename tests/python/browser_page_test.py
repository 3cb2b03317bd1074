"""browser_page_test.py: examples/browser in a real browser, and its modules under Node.

Run through ctest, which says where the program is and where the WebAssembly module is built; skipped without Emscripten,
Chromium or Node (scripts/setup --dev installs them).
"""

import http.server
import json
import os
import random
import shutil
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

from browser import Browser, Server, find_chromium, has_colours
from browser_page import QUICK, REPOSITORY, TINY, build_module, make_page
from needs import thimble_program

LLAMA = REPOSITORY.parent / "shared" / "data" / "llama-small"
MOST_MODULE_BYTES = 400_000
WIDTHS = {"phone": 390, "desktop": 1280}
DAMAGED_COPIES = 80
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SETTLED = "!['loading', 'writing'].includes(document.body.dataset.state)"
STATE = "document.body.dataset.state"
ERROR = "document.getElementById('error').textContent"

# [prompt, new tokens, temperature, seed]
TEXTS = [
    ["The river", 120, 0.8, 7],
    ["", 60, 1.0, 2**64 - 1],
    ["Größe – 火 and\n\n tabs\t", 40, 0.0, 0],
]

# Texts with less than 4.5 between them and what is behind, of elements that say something themselves and can be used.
POOR_CONTRAST = """
(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const rgb = numbers(getComputedStyle(element).backgroundColor);
      if (rgb.length === 3 || rgb[3] === 1) return rgb;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll('*')].filter(element => element.getClientRects().length && !element.disabled &&
    (element.matches('input, textarea') || [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim())))
    .filter(element => {
      const [a, b] = [luminance(numbers(getComputedStyle(element).color)), luminance(behind(element))];
      return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
    }).map(element => element.outerHTML.slice(0, 80));
})()
"""
UNLABELLED = """
[...document.querySelectorAll('input, textarea, button, progress, [role=region], [role=img]')].filter(element =>
  !(element.labels?.length || element.ariaLabel || element.getAttribute('aria-labelledby') ||
    element.matches('button') && element.textContent.trim())).map(element => element.outerHTML)
"""


def setUpModule() -> None:
    chromium = find_chromium()
    if chromium is None:
        raise unittest.SkipTest("Chromium is not installed")
    for program in ("emcmake", "make", "node"):
        if shutil.which(program) is None:
            raise unittest.SkipTest(f"{program} is not installed")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    unittest.addModuleCleanup(folder.cleanup)
    build = Path(os.environ.get("BROWSER_MODULE_BUILD", Path(folder.name) / "build"))
    Page.module = build_module(REPOSITORY / "examples" / "browser" / "module", build, "thimble_model")
    Page.folder = Path(folder.name) / "page"
    Page.folder.mkdir()
    make_page(Page.folder, Page.module, thimble_program())
    Page.artifact = (Page.folder / "model.thmb").read_bytes()
    Page.server = Server(Page.folder)
    unittest.addModuleCleanup(Page.server.close)
    profile = Path(folder.name) / "profile"
    profile.mkdir()
    Page.browser = Browser(chromium, profile)
    unittest.addModuleCleanup(Page.browser.close)


def tokens_of_the_program(artifact: Path, text: list) -> tuple[list[int], str]:
    """Tokens and text, of the prompt and what was added, as `thimble generate` has them."""
    prompt, length, temperature, seed = text
    command = [thimble_program(), "generate", str(artifact), "--tokenizer", str(TINY / "tokenizer.model"), "--json"]
    command += ["--prompt", prompt, "--length", str(length), "--temperature", str(temperature), "--seed", str(seed)]
    environment = {**os.environ, "THIMBLE_ISA": "portable"}
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    return done["tokens"], done["text"]


class Page(unittest.TestCase):
    """What the tests below share."""

    module: Path
    folder: Path
    artifact: bytes
    server: Server
    browser: Browser

    def open(self, address: str | None = None, width: int = WIDTHS["desktop"], dark: bool = False) -> None:
        self.browser.open(address or self.server.address, width, dark=dark)

    def click(self, name: str) -> None:
        self.browser.evaluate(f"document.getElementById('{name}').click()")

    def load_bundled(self, state: str = "ready") -> None:
        self.click("load-bundled")
        self.browser.wait_for(SETTLED)
        self.assertEqual(self.browser.evaluate(STATE), state, self.browser.evaluate(ERROR))

    def set_field(self, name: str, value: object) -> None:
        self.browser.evaluate(f"document.getElementById('{name}').value = {json.dumps(str(value))}; 0")

    def text_of(self, name: str) -> str:
        return self.browser.evaluate(f"document.getElementById('{name}').textContent")

    def choose(self, script: str) -> None:
        """Chooses as an artifact the File that the script gives, `good` being the bundled one's bytes."""
        self.browser.evaluate(
            "(async () => { window.good ??= new Uint8Array(await (await fetch('model.thmb')).arrayBuffer());"
            "const transfer = new DataTransfer(), input = document.getElementById('artifact-file');"
            f"transfer.items.add((({script})));"
            "input.files = transfer.files; input.dispatchEvent(new Event('change')); })()"
        )
        self.click("load-own")
        self.browser.wait_for(SETTLED)


class PageTest(Page):
    def test_it_continues_texts_as_the_program_does(self):
        self.open()
        self.load_bundled()
        for text in TEXTS:
            self.check_text(self.folder / "model.thmb", text)
        self.assertEqual(self.browser.problems(), [])

    def check_text(self, artifact: Path, text: list) -> None:
        with self.subTest(text=text):
            for name, value in zip(("prompt", "length", "temperature", "seed"), text, strict=True):
                self.set_field(name, value)
            self.click("continue")
            self.browser.wait_for(SETTLED)
            tokens, all_text = tokens_of_the_program(artifact, text)
            new = [int(token) for token in self.text_of("tokens").split()]
            self.assertGreater(len(new), 0)
            self.assertEqual(new, tokens[-len(new) :])
            self.assertIn(f"{len(new)} tokens", self.text_of("text-status"))
            shown = self.text_of("continuation")
            self.assertTrue(shown.startswith(text[0]))
            self.assertTrue(all_text.endswith(shown[len(text[0]) :]), (all_text, shown))

    def test_a_llama_continues_texts_as_the_program_does(self):
        if not LLAMA.exists():
            self.skipTest(f"{LLAMA} is not there")
        artifact = self.folder.parent / "llama.thmb"
        options = "--bits-per-weight 4 --codec rans --portable " + QUICK
        command = [thimble_program(), "quantize", str(LLAMA), "-o", str(artifact), *options.split()]
        subprocess.run(command, check=True, capture_output=True)
        self.open()
        self.choose_file("artifact-file", artifact)
        self.choose_file("tokenizer-file", TINY / "tokenizer.model")
        self.click("load-own")
        self.browser.wait_for(SETTLED)
        self.assertEqual(self.browser.evaluate(STATE), "ready", self.browser.evaluate(ERROR))
        self.assertIn("at most 1,024 tokens", self.text_of("length-hint"))
        for text in TEXTS:
            self.check_text(artifact, text)
        self.assertEqual(self.browser.problems(), [])

    def choose_file(self, name: str, path: Path) -> None:
        root = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        node = self.browser.call("DOM.querySelector", nodeId=root, selector=f"#{name}")["nodeId"]
        self.browser.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def test_another_kind_of_tokenizer_leaves_the_artifact_decoded(self):
        whole = (TINY / "tokenizer.model").read_bytes()
        for name, content, text in (
            ("tokenizer.json", b'{"model": {"type": "BPE"}}', "this is JSON, a SentencePiece model was expected"),
            ("half.model", whole[: len(whole) // 2], ".{10,}"),
        ):
            with self.subTest(name=name):
                path = self.folder.parent / name
                path.write_bytes(content)
                self.open()
                self.choose_file("artifact-file", self.folder / "model.thmb")
                self.choose_file("tokenizer-file", path)
                self.click("load-own")
                self.browser.wait_for(SETTLED)
                self.assertEqual(self.browser.evaluate(STATE), "decoded", self.browser.evaluate(ERROR))
                self.assertRegex(self.text_of("status"), f"It continues no text: tokenizer: {text}$")
                self.assertFalse(self.browser.evaluate("document.getElementById('text').checkVisibility()"))
                self.assertEqual(self.browser.problems(), [])

    def test_it_asks_for_its_own_files_alone_and_says_nothing_on_the_console(self):
        self.open()
        self.load_bundled()
        own = {self.server.address} | {self.server.address + file.name for file in self.folder.iterdir()}
        self.assertEqual(set(self.browser.requests()) - own, set())
        self.assertEqual(self.browser.problems(), [])
        self.assertNotEqual(self.browser.evaluate("document.title"), "")

    def test_it_fits_widths_and_colour_schemes(self):
        for width in WIDTHS.values():
            pictures = []
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    self.open(width=width, dark=dark)
                    self.assertEqual(self.browser.evaluate(POOR_CONTRAST), [])
                    self.load_bundled()
                    self.set_field("length", 20)
                    self.click("continue")
                    self.browser.wait_for(SETTLED)
                    self.browser.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
                    self.assertLessEqual(self.browser.evaluate(OVERFLOW), 0)
                    self.assertEqual(self.browser.evaluate(POOR_CONTRAST), [])
                    self.assertEqual(self.browser.evaluate(UNLABELLED), [])
                    pictures.append(self.browser.screenshot(whole_page=True))
                    self.assertTrue(has_colours(pictures[-1], 8))
            self.assertNotEqual(*pictures)

    def test_the_checks_find_what_is_wrong(self):
        self.open()
        self.browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<p class=poor>pale</p><input>'); 0")
        self.browser.evaluate("document.querySelector('.poor').style.color = '#aaa'; console.info('said'); 0")
        self.browser.evaluate("document.querySelector('.poor').style.width = '3000px'; 0")
        self.assertEqual(len(self.browser.evaluate(POOR_CONTRAST)), 1)
        self.assertEqual(len(self.browser.evaluate(UNLABELLED)), 1)
        self.assertGreater(self.browser.evaluate(OVERFLOW), 0)
        self.assertEqual(len(self.browser.problems()), 1)

    def test_keys_alone_are_enough(self):
        self.open()
        self.press("Tab")
        self.assertEqual(self.browser.evaluate("document.activeElement.id"), "load-bundled")
        self.press("Enter")
        self.browser.wait_for(f"{SETTLED} && {STATE} !== 'empty'")
        reached = []
        for _ in range(20):
            self.press("Tab")
            reached.append(self.browser.evaluate("document.activeElement.id"))
            if reached[-1] == "continue":
                break
        self.assertEqual(reached[-1], "continue")
        self.assertLessEqual({"artifact-file", "prompt", "length", "temperature", "seed"}, set(reached))
        self.press("Enter")
        self.browser.wait_for(f"{SETTLED} && document.getElementById('tokens').textContent !== ''")

    def press(self, key: str) -> None:
        codes = {"Tab": (9, ""), "Enter": (13, "\r")}
        code, text = codes[key]
        for kind in ("keyDown", "keyUp"):
            self.browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                              **({"text": text} if text and kind == "keyDown" else {}))  # fmt: skip

    def test_tensors_are_on_the_map_and_in_the_table(self):
        self.open()
        self.load_bundled()
        command = [thimble_program(), "inspect", str(self.folder / "model.thmb"), "--json"]
        tensors = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["tensors"]
        rows = self.browser.evaluate(
            "[...document.getElementById('rows').rows].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        self.assertEqual([row[0] for row in rows], sorted(tensor["name"] for tensor in tensors))
        self.assertEqual({row[-1] for row in rows}, {"yes"})
        areas = self.browser.evaluate(
            "[...document.querySelectorAll('#map .is-decoded')].map(area => [area.title.split(':')[0],"
            "area.getBoundingClientRect().width * area.getBoundingClientRect().height])"
        )
        stored = {row[0]: int(row[3].replace(",", "")) for row in rows}
        self.assertEqual({name for name, _ in areas}, {name for name, size in stored.items() if size > 0})
        whole = sum(area for _, area in areas)
        for name, area in areas:
            self.assertAlmostEqual(area / whole, stored[name] / sum(stored.values()), delta=2e-4)

    def test_an_artifact_without_a_tokenizer_is_decoded(self):
        self.open()
        self.choose("new File([good], 'mine.thmb')")
        self.assertEqual(self.browser.evaluate(STATE), "decoded")
        self.assertIn("mine.thmb is decoded", self.text_of("status"))
        self.assertFalse(self.browser.evaluate("document.getElementById('text').checkVisibility()"))
        self.assertEqual(self.browser.problems(), [])

    def test_files_can_be_dropped(self):
        self.open()
        self.browser.evaluate(
            "(async () => { const transfer = new DataTransfer();"
            "for (const name of ['model.thmb', 'tokenizer.model'])"
            "  transfer.items.add(new File([await (await fetch(name)).arrayBuffer()], name));"
            "document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: transfer, bubbles: true })); })()"
        )
        self.click("load-own")
        self.browser.wait_for(SETTLED)
        self.assertEqual(self.browser.evaluate(STATE), "ready", self.browser.evaluate(ERROR))

    def test_a_text_can_be_stopped_and_a_download_cancelled(self):
        self.open()
        self.load_bundled()
        self.set_field("length", 100000)
        self.click("continue")
        self.browser.wait_for("document.getElementById('continuation').textContent.length > 50")
        self.click("stop")
        self.browser.wait_for(SETTLED)
        self.assertIn("Stopped after", self.text_of("text-status"))
        self.set_field("length", 5)
        self.click("continue")
        self.browser.wait_for(SETTLED)
        self.assertIn("5 tokens", self.text_of("text-status"))
        self.browser.evaluate("document.getElementById('load-bundled').click(); document.getElementById('cancel').click()")
        self.assertEqual(self.browser.evaluate(STATE), "empty")
        self.load_bundled()
        self.assertEqual(self.browser.problems(), [])

    def test_a_text_that_the_model_refuses_leaves_it_in_use(self):
        self.open()
        self.load_bundled()
        self.browser.evaluate("document.getElementById('length').max = 1e9; 0")
        self.set_field("length", 2**21)
        self.click("continue")
        self.browser.wait_for(SETTLED)
        self.assertEqual((self.browser.evaluate(STATE), self.text_of("text-status")),
                         ("ready", "new tokens must be 1 to 1048576"))  # fmt: skip
        self.set_field("length", 5)
        self.click("continue")
        self.browser.wait_for(SETTLED)
        self.assertIn("5 tokens", self.text_of("text-status"))

    def test_damaged_and_truncated_files_are_explained(self):
        """None of them is taken, none harms the page; each has a text that names the file's object."""
        self.open()
        pick = random.Random(1)
        size = len(self.artifact)
        texts = set()
        for copy in range(DAMAGED_COPIES):
            at, bit = pick.randrange(size), pick.randrange(8)
            script = (
                f"(() => {{ const bad = good.slice(); bad[{at}] ^= {1 << bit}; return new File([bad], 'bad.thmb') }})()",
                f"new File([good.subarray(0, {at})], 'bad.thmb')",
                f"(() => {{ const bad = good.slice(); bad.fill({at % 256}, {at}, {at} + 64); bad[{at}] ^= 1;"
                " return new File([bad], 'bad.thmb') })()",
                f"new File([good, new Uint8Array({1 + bit})], 'bad.thmb')",
            )[copy % 4]
            with self.subTest(copy=copy, at=at, bit=bit):
                self.choose(script)
                self.assertEqual(self.browser.evaluate(STATE), "failed")
                texts.add(text := self.text_of("error"))
                self.assertRegex(text, r"^bad\.thmb: .{10,}")
        self.assertGreater(len(texts), 5)
        self.assertEqual(self.browser.problems(), [])
        self.load_bundled()

    def test_servers_that_have_no_artifact_are_explained(self):
        for answer, text in (
            ("missing", "model.thmb: the server answers 404"),
            ("page", "model.thmb: the server sends a web page (text/html; charset=utf-8), a file was expected"),
            ("short", "model.thmb: ends after "),
            ("empty", "model.thmb: "),
        ):
            with self.subTest(answer=answer), OddServer(self.folder, answer) as server:
                self.open(server.address)
                self.load_bundled("failed")
                self.assertIn(text, self.text_of("error"))

    def test_it_decodes_while_the_artifact_downloads(self):
        with OddServer(self.folder, "held") as server:
            self.open(server.address)
            self.click("load-bundled")
            self.browser.wait_for("document.querySelectorAll('#map .is-decoded').length > 3")
            arrived = int(self.text_of("bytes").split(" of ")[0].replace(",", ""))
            self.assertLess(arrived, len(self.artifact))
            server.release.set()
            self.browser.wait_for(SETTLED)
            self.assertEqual(self.browser.evaluate(STATE), "ready")


class OddServer(Server):
    """Serves the folder, but of model.thmb: 'missing' nothing; 'page' a web page; 'short' fewer bytes than it says;
    'empty' no bytes; 'held' two thirds, and the rest once `release` is set."""

    def __init__(self, folder: Path, answer: str) -> None:
        super().__init__(folder)
        self.release = threading.Event()
        whole = (folder / "model.thmb").read_bytes()

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(handler, *arguments):
                super().__init__(*arguments, directory=str(folder))

            def log_message(handler, *arguments):
                pass

            def do_GET(handler):
                if handler.path != "/model.thmb":
                    return super().do_GET()
                if answer == "missing":
                    return handler.send_error(404)
                body = {"page": b"<p>no", "short": whole[:1000], "empty": b"", "held": whole}[answer]
                handler.send_response(200)
                kind = "text/html; charset=utf-8" if answer == "page" else "application/octet-stream"
                handler.send_header("Content-Type", kind)
                handler.send_header("Content-Length", str(len(whole if answer == "short" else body)))
                handler.end_headers()
                if answer == "held":
                    first = len(whole) * 2 // 3
                    handler.wfile.write(body[:first])
                    handler.wfile.flush()
                    self.release.wait(120)
                    body = body[first:]
                handler.wfile.write(body)
                handler.close_connection = True

        self._server.RequestHandlerClass = Handler

    def __enter__(self) -> "OddServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self.close()


class ModuleTest(Page):
    def node(self, *arguments: str) -> dict:
        command = ["node", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_it_is_small(self):
        self.assertLessEqual(self.module.stat().st_size, MOST_MODULE_BYTES)

    def test_it_continues_texts_under_node(self):
        for text in TEXTS:
            with self.subTest(text=text):
                done = self.node(str(REPOSITORY / "tests" / "browser" / "run_module.mjs"), str(self.module),
                                 str(self.folder / "model.thmb"), str(TINY / "tokenizer.model"),
                                 *(str(value) for value in text))  # fmt: skip
                tokens, _ = tokens_of_the_program(self.folder / "model.thmb", text)
                self.assertEqual(done["promptTokens"] + done["tokens"], tokens)


if __name__ == "__main__":
    unittest.main()
