"""browser_page.py: the folder of examples/browser's page with its WebAssembly module and an artifact, for tests and
benchmarks."""

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BROWSER = REPOSITORY / "examples" / "browser"
TINY = REPOSITORY / "examples" / "tiny"
QUICK = "--calibration-sequences 4 --calibration-length 64 --distill-steps 0 --cross-term 0 --no-resume"


def build_module(source: Path, build: Path, target: str) -> Path:
    """What Emscripten makes of a CMake project: <target>.wasm. Raises CalledProcessError with what it said."""
    for command in (
        ["emcmake", "cmake", "-S", str(source), "-B", str(build), "-G", "Unix Makefiles"],
        ["cmake", "--build", str(build), "--parallel", "2", "--target", target],
    ):
        subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return build / f"{target.removesuffix('_module')}.wasm"


def make_page(folder: Path, module: Path, thimble: str) -> None:
    """Copies the page into an empty folder and quantizes the bundled model, quickly."""
    for pattern in ("*.html", "*.css", "*.mjs", "*.svg"):
        for file in BROWSER.glob(pattern):
            shutil.copy(file, folder)
    shutil.copy(module, folder / "thimble_model.wasm")
    shutil.copy(TINY / "tokenizer.model", folder)
    options = "--budget 600000 --codec rans --portable " + QUICK
    command = [thimble, "quantize", str(TINY), "-o", str(folder / "model.thmb"), *options.split()]
    subprocess.run(command, check=True, capture_output=True)
