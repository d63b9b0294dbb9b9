#!/usr/bin/env python3
"""`make bench`: measures what is promised, beside other programs, in one run, and prints one table.

The parts are below; without arguments all run. Absolute times depend on the machine; ratios to what ran beside them do not.
Nothing here asserts: a missed target is marked.
"""
import ctypes
import subprocess
import sys

import bench
import envd_part
import files_part
import jobs_part
import proxy_part
import relay_part
import tls_part
import watch_part

PARTS = {
    "size": envd_part.measure_size,
    "start": envd_part.measure_start,
    "footprint": envd_part.measure_footprint,
    "exec": envd_part.measure_exec,
    "stream": envd_part.measure_stream,
    "parallel": envd_part.measure_parallel,
    "files": files_part.measure,
    "jobs": jobs_part.measure,
    "watch": watch_part.measure,
    "proxy": proxy_part.measure,
    "relay": relay_part.measure,
    "tls": tls_part.measure_http1,
    "http2": tls_part.measure_http2,
}


def main():
    failed = False
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    for name in sys.argv[1:] or PARTS:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        try:
            PARTS[name]()
        except (RuntimeError, OSError, subprocess.SubprocessError, AttributeError, ValueError) as error:
            failed = True
            bench.row(name, f"could not be measured: {error}"[:160])
        bench.end_leftovers()
    bench.print_table()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
