"""The part `proxy` of the bench: what a small answer over kept connections costs it, beside nginx and haproxy."""
import bench
import rivals


def measure():
    results = {}
    with bench.temporary_folder() as folder, bench.backend() as backend:
        with rivals.nginx_proxy(folder, bench.free_port(), backend.port) as other:
            results["nginx"] = bench.load("nginx", other.pid, other.port, "bench")
        with rivals.haproxy(folder, bench.free_port(), backend.port) as other:
            results["haproxy"] = bench.load("haproxy", other.pid, other.port, "bench")
        with bench.proxy(backend.port) as ours:
            results["proxy"] = bench.load("proxy", ours.pid, ours.port, "49983-bench.localhost")
            resident = bench.status_kib(ours.pid, "VmRSS")
    cost, rate = results["proxy"]
    for name in ("haproxy", "nginx"):
        beside, beside_rate = results[name]
        target = {"target": "≤ 1.00 ×", "good": cost <= beside} if name == "haproxy" else {}
        bench.row(f"proxied request, CPU (beside {name})", f"{cost:.1f} µs, {rate:.0f}/s",
                  f"{name} {beside:.1f} µs, {beside_rate:.0f}/s", cost / beside, **target)
    bench.row("  proxy resident memory, 32 connections", f"{resident} KiB")
