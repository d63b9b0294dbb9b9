"""The PyPI client `e2b`, unmodified, on every road."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

from programs import main  # noqa: E402
from sdk_suite import VERSION, Suite, suites  # noqa: E402

suites(globals(), Suite, VERSION, ["direct", "headers", "domain", "shared"])
del Suite

if __name__ == "__main__":
    main()
