"""The same with an older PyPI client, which has an HTTP and Connect implementation of its own."""

from test_e2b import *  # noqa: F401,F403
from programs import main

if __name__ == "__main__":
    main()
