"""The parts `size`, `start`, `footprint`, `exec`, `stream` and `parallel` of the bench: envd and its commands."""
import json
import os
import statistics
import subprocess
import time

import bench


def measure_size():
    size = os.path.getsize(bench.ENVD)
    bench.row("envd, static, stripped", f"{size / 1024:.0f} KiB", target="≤ 1024 KiB", good=size <= bench.MIB)


def measure_start():
    times = []
    for _ in range(21):
        port = bench.free_port()
        times.append(bench.client(port, "health", bench.ENVD, "-isnotfc", "-port", port)["health_us"])
    median = statistics.median(times)
    bench.row("start to first answered /health", f"{median / 1000:.2f} ms", target="≤ 5 ms", good=median <= 5000)


def measure_footprint():
    port = bench.free_port()
    with bench.Running(bench.ENVD, "-isnotfc", "-port", str(port), stderr=subprocess.DEVNULL) as fresh:
        bench.wait_for_port(port, fresh.process)
        time.sleep(0.3)
        idle = bench.status_kib(fresh.pid, "VmRSS")
        bench.row("idle resident memory (VmRSS)", f"{idle} KiB", f"{bench.status_kib(fresh.pid, 'RssAnon')} KiB of it anonymous",
                  target="≤ 1024 KiB", good=idle <= 1024)
        before = bench.wakeups(fresh.pid)
        time.sleep(5)
        rate = (bench.wakeups(fresh.pid) - before) / 5
        bench.row("idle wake-ups", f"{rate:.1f} /s", target="0 /s", good=rate == 0)
    count = 1000
    with bench.envd() as server:
        idle = bench.status_kib(server.pid, "VmRSS")
        holder = subprocess.Popen([bench.CLIENT, str(server.port), "hold", str(count)], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        try:
            if not holder.stdout.readline():
                raise RuntimeError("the idle processes could not be started")
            time.sleep(0.5)
            each = (bench.status_kib(server.pid, "VmRSS") - idle) / count
            bench.row(f"per idle process with its open stream, {count}", f"{each:.1f} KiB", target="≤ 16 KiB", good=each <= 16)
        finally:
            holder.stdin.close()
            holder.wait()


def busy_core():
    """A program that leaves one core to others only as far as the scheduler makes it; ends by itself, too."""
    return bench.Running("taskset", "-c", str(min(os.sched_getaffinity(0))), "timeout", "300", "sh", "-c", "while :; do :; done")


def measure_starts(what, server):
    """Both in turn, many times: what else the machine does meets both."""
    bare, ours = [], []
    for _ in range(8):
        bare.append(json.loads(subprocess.run([bench.SPAWN_LOOP, "250"], capture_output=True, text=True, check=True).stdout))
        ours.append(bench.client(server.port, "start", 250))

    def medians(field):
        return (statistics.median(each[f"start_{field}_us"] for each in ours),
                statistics.median(each[f"spawn_{field}_us"] for each in bare))

    p50, spawn = medians("p50")
    limit = 1.5 * spawn + 100
    bench.row(f"{what}, p50", f"{p50:.0f} µs", f"vfork+exec+wait {spawn:.0f} µs", p50 / spawn, f"≤ {limit:.0f} µs (1.5 × + 100)", p50 <= limit)
    p99, spawn99 = medians("p99")
    bench.row(f"{what}, p99", f"{p99:.0f} µs", f"vfork+exec+wait {spawn99:.0f} µs", p99 / spawn99)


def measure_exec():
    with bench.envd() as server:
        measure_starts("Start(/bin/true) to end", server)
        with busy_core():
            measure_starts("  with another core busy", server)


def measure_stream():
    payload = 2_000_000_000
    cat = json.loads(subprocess.run([bench.CLIENT, "-", "sink", f"head -c {payload * 4 // 3} /dev/zero | cat"],
                                    capture_output=True, text=True, check=True).stdout)
    with bench.envd() as server:
        bench.client(server.port, "stream", 50_000_000)
        before = bench.cpu_seconds([server.pid])
        ours = bench.client(server.port, "stream", payload)
        cpu = bench.cpu_seconds([server.pid]) - before
        peak = bench.status_kib(server.pid, "VmHWM")
    wall, beside = payload / ours["seconds"] / 1e9, payload / cat["seconds"] / 1e9
    bench.row("output streaming, JSON, payload", f"{wall:.2f} GB/s", f"cat of the same as base64 {beside:.2f} GB/s",
              wall / beside, "≥ 1 GB/s or ≥ 0.60 ×", wall >= min(1.0, 0.6 * beside))
    bench.row("  payload per CPU second of envd", f"{payload / cpu / 1e9:.2f} GB", "its own time alone", target="≥ 1 GB", good=payload / cpu >= 1e9)
    bench.row("  peak resident memory", f"{peak} KiB")


def measure_parallel():
    with bench.envd() as server:
        idle = bench.status_kib(server.pid, "VmRSS")
        result = bench.client(server.port, "parallel", 1000)
        deadline = time.monotonic() + 45
        after = bench.status_kib(server.pid, "VmRSS")
        while after > idle + 1024 and time.monotonic() < deadline:
            time.sleep(1)
            after = bench.status_kib(server.pid, "VmRSS")
        bench.row("1,000 commands at once, all checked", f"{result['seconds']:.2f} s", f"memory before {idle}, after {after} KiB",
                  target="≤ 1 MiB left", good=after <= idle + 1024)
