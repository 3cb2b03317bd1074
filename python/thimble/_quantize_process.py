"""_quantize_process.py: the process in which quantize() solves. It loads no PyTorch: what takes the model, the process
that started it does. Messages are pickled, one after another:

    in   arguments of _thimble.quantize(); with "asks", questions may follow
    out  ("ask", question, ...)                  answered by one message in
    out  ("done", JSON), or ("error", exit code, text)
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

import numpy

from . import _thimble
from .errors import Error


def _arrays(value: Any) -> Any:
    """With NumPy's arrays, which can be pickled, instead of what shares thimble's memory."""
    if isinstance(value, dict):
        return {name: _arrays(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(_arrays(one) for one in value)
    return numpy.asarray(value) if hasattr(value, "__dlpack__") else value


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    questions = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may come between messages

    def send(*message: Any) -> None:
        pickle.dump(message, questions, protocol=pickle.HIGHEST_PROTOCOL)
        questions.flush()

    def ask(*question: Any) -> Any:
        send("ask", *_arrays(question))
        return pickle.load(answers)

    arguments = pickle.load(answers)
    if arguments.pop("asks", False):
        arguments["ask"] = ask
    try:
        send("done", _thimble.quantize(**arguments))
    except Error as error:
        send("error", error.exit_code, str(error))


if __name__ == "__main__":
    main()
