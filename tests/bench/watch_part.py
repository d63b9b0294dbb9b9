"""The part `watch` of the bench: what a watched directory costs, and how long a poll takes."""
import statistics
import time

import bench
import jobs_part


class Watches(jobs_part.Jobs):
    """Calls of filesystem.Filesystem, the same way."""

    service = "filesystem.Filesystem"
    headers = {"Content-Type": "application/json", "Authorization": "Basic cm9vdDo="}


def measure():
    count = 100
    with bench.temporary_folder() as folder, bench.envd() as server:
        calls = Watches(server.port)
        calls.call("RemoveWatcher", watcherId=calls.call("CreateWatcher", path=folder)["watcherId"])
        idle = bench.status_kib(server.pid, "VmRSS")
        made = [calls.call("CreateWatcher", path=folder, recursive=True)["watcherId"] for _ in range(count)]
        with open(f"{folder}/file", "w", encoding="ascii") as file:
            file.write("x")
        for each in made:  # each has told of it then
            if not calls.call("GetWatcherEvents", watcherId=each).get("events"):
                raise RuntimeError("a watcher has not told of a file")
        helpers = [pid for pid in bench.family(server.pid) if jobs_part.status_name(pid) == "envd-watch"]
        in_envd = (bench.status_kib(server.pid, "VmRSS") - idle) / count
        own = statistics.mean(jobs_part.rollup_kib(pid, "Pss") for pid in helpers)
        bench.row(f"memory per watch, {count}: helper and in envd", f"{own + in_envd:.1f} KiB ({own:.1f} + {in_envd:.1f})",
                  target="≤ 40 KiB", good=len(helpers) == count and own + in_envd <= 40)
        bench.row("  its helper, with the pages of code that all share",
                  f"{statistics.mean(jobs_part.rollup_kib(pid, 'Rss') for pid in helpers):.1f} KiB",
                  f"{statistics.mean(bench.status_kib(pid, 'VmPTE') for pid in helpers):.0f} KiB of page tables")
        times = []
        for _ in range(1000):
            began = time.perf_counter()
            calls.call("GetWatcherEvents", watcherId=made[0])
            times.append(time.perf_counter() - began)
        bench.row("poll of a watcher, p50", f"{statistics.median(times) * 1e6:.0f} µs")
