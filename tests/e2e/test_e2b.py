"""The PyPI client `e2b` in its debug mode, unmodified: straight to envd, and through the proxy."""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

from programs import main  # noqa: E402
from sdk_suite import VERSION, AsyncSuite, SyncSuite  # noqa: E402


class SyncDirect(SyncSuite):
    label = f"{VERSION} direct"


class SyncProxied(SyncSuite):
    label = f"{VERSION} proxied"
    through_proxy = True


class AsyncDirect(AsyncSuite):
    label = f"{VERSION} async direct"


class AsyncProxied(AsyncSuite):
    label = f"{VERSION} async proxied"
    through_proxy = True


del SyncSuite, AsyncSuite

if __name__ == "__main__":
    main()
