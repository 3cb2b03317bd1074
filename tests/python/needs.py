"""needs.py: skips tests where what they need is missing: a package, the program."""

import importlib.util
import os
import unittest


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise unittest.SkipTest(f"{package} is not installed")


def thimble_program() -> str:
    """The program that THIMBLE names."""
    if not os.environ.get("THIMBLE"):
        raise unittest.SkipTest("THIMBLE names no program")
    return os.environ["THIMBLE"]
