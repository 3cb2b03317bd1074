"""_quantize_process.py: the process in which quantize() solves: arguments of _thimble.quantize() as JSON on standard
input, its answer, or the error's exit code and text, on standard output. It loads no PyTorch."""

from __future__ import annotations

import json
import sys

from . import _thimble
from .errors import Error

if __name__ == "__main__":
    try:
        print(_thimble.quantize(**json.load(sys.stdin)))
    except Error as error:
        print(json.dumps({"exit_code": error.exit_code, "message": str(error)}))
