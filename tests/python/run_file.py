"""run_file.py FILE: runs the tests of one file of this folder.

Exit status: 0 passed, 1 failed or nothing to run, 77 when every test was skipped, so that ctest says so.
"""

import sys
import unittest
from pathlib import Path

SKIPPED = 77


def main() -> int:
    path = Path(sys.argv[1]).resolve()
    suite = unittest.defaultTestLoader.discover(str(path.parent), pattern=path.name)
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    if not result.wasSuccessful():
        return 1
    # Python 3.12 does not count a file that skips itself as run.
    if result.skipped and len(result.skipped) >= result.testsRun:
        return SKIPPED
    return 0 if result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
