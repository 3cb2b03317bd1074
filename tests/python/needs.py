"""needs.py: skips a test file where a package that it imports is missing."""

import importlib.util
import unittest


def needs(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise unittest.SkipTest(f"{package} is not installed")
