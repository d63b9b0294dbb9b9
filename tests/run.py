#!/usr/bin/env python3
"""Runs the whole suite, or the parts that are named: tests/run.py [SUITE...]

Each suite is a list of commands. What a command's runner says in its closing lines (cmocka, node:test,
unittest, or "N passed, N failed") is added up; a command that fails without saying so, or runs no test,
counts as one failure. Full output is in build/logs/<suite>.log; what failed is shown at the end, before
the one line that closes every run.
"""
import concurrent.futures
import ctypes
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

OUT = os.environ.get("OUT", "build")
LOGS = os.path.join(OUT, "logs")
PR_SET_CHILD_SUBREAPER = 36
SKIP = 77  # a command that cannot run here, and says why in its last line
ANSI = re.compile(r"\x1b\[[0-9;]*m")
COUNTS = [
    # cmocka
    (r"^\[  PASSED  \] (\d+) test\(s\)\.", "passed"),
    (r"^\[  FAILED  \] (\d+) test\(s\), listed below", "failed"),
    (r"^\[  SKIPPED \] (\d+) test\(s\)", "skipped"),
    # node:test, tap and spec
    (r"^(?:#|ℹ) pass (\d+)", "passed"),
    (r"^(?:#|ℹ) (?:fail|cancelled) (\d+)", "failed"),
    (r"^(?:#|ℹ) (?:skipped|todo) (\d+)", "skipped"),
    # ours and any other
    (r"^(?:\w+: )?(\d+) passed, \d+ failed", "passed"),
    (r"^(?:\w+: )?\d+ passed, (\d+) failed", "failed"),
    (r"^(?:\w+: )?\d+ passed, \d+ failed, (\d+) skipped", "skipped"),
]


class Step:
    """One command of a suite. `check` steps count as one test themselves: building, linting."""

    def __init__(self, name, command, timeout=120, env=None, check=False):
        self.name, self.command, self.timeout = name, command, timeout
        self.env, self.check = env or {}, check


def make(*arguments):
    return ["make", "-s", "--no-print-directory", f"OUT={OUT}", f"-j{os.cpu_count()}", *arguments]


def names_of(target, *arguments):
    out = subprocess.run(make(*arguments, f"print-{target}"), capture_output=True, text=True)
    return out.stdout.split()


def suite_lint():
    yield Step("lint", make("lint"))


def suite_build():
    """Warnings are errors, with both compilers; everything the other suites run is built here."""
    for profile in ("dev", "clang", "asan", "opt"):
        yield Step(profile, make(f"PROFILE={profile}", "CI=1", "all", "unit-build"), timeout=900, check=True)
    yield Step("fuzz", make("PROFILE=fuzz", "CI=1", "fuzz-build"), timeout=900, check=True)
    yield Step("static", make("PROFILE=static", "CI=1", "all"), timeout=900, check=True)


def unit_steps(profile):
    yield Step("build", make(f"PROFILE={profile}", "CI=1", "all", "unit-build"), timeout=900, check=True)
    for program in names_of("UNIT_PROGRAMS", f"PROFILE={profile}"):
        yield Step(program, [program], timeout=600)


def suite_unit():
    yield from unit_steps("dev")
    # Once more as under old kernels and in sandboxes that refuse what starting processes, replays and downloads use where they can.
    for program in names_of("UNIT_PROGRAMS", "PROFILE=dev"):
        if "/envd/process/" in program or "/envd/jobs/" in program or program.endswith("/test_downloads_large"):
            yield Step(f"old kernel: {program}", [f"{OUT}/dev/tests/support/old_kernel", "ENOSYS", program], timeout=600)


def suite_unit_asan():
    yield from unit_steps("asan")


# Minutes each, there. `tests/run.py valgrind-slow` has them; it is not part of the whole suite.
SLOW_UNDER_VALGRIND = re.compile(r"/test_(http_server_wire|rpc_memory|downloads|downloads_large|transfers_crowd)$")


def valgrind_steps(is_wanted):
    """Reads of memory that nobody has written, and what is lost. Processes start as on old kernels there. The programs
    look for leaks themselves (support/valgrind.h), and skip what valgrind cannot do, with the reason."""
    if not shutil.which("valgrind"):
        print("  valgrind: there is none; nothing is tested")
        return
    yield Step("build", make("PROFILE=dev", "CI=1", "all", "unit-build"), timeout=900, check=True)
    for program in filter(is_wanted, names_of("UNIT_PROGRAMS", "PROFILE=dev")):
        yield Step(program, ["valgrind", "-q", "--error-exitcode=99", "--leak-check=no", "--show-leak-kinds=definite",
                             "--errors-for-leak-kinds=definite", "--child-silent-after-fork=yes",
                             "--suppressions=tests/valgrind.supp", program], timeout=600)


def suite_valgrind():
    yield from valgrind_steps(lambda program: not SLOW_UNDER_VALGRIND.search(program))


def suite_valgrind_slow():
    yield from valgrind_steps(SLOW_UNDER_VALGRIND.search)


def suite_fuzz():
    """Every fuzzer over its corpus, once."""
    yield Step("build", make("PROFILE=fuzz", "CI=1", "fuzz-build"), timeout=900, check=True)
    for program in names_of("FUZZ_PROGRAMS", "PROFILE=fuzz"):
        name = os.path.basename(program)
        corpus = os.path.join("tests/fuzz/corpus", name)
        command = [program, "-runs=0", "-rss_limit_mb=4096", "-timeout=20"] + ([corpus] if os.path.isdir(corpus) else [])
        yield Step(name, command, timeout=300, check=True)


def suite_connect():
    """The Connect project's conformance suite against envd's rpc code, where Go could install its runner."""
    runner = "build/conformance/connectconformance"
    if not os.path.exists(runner):
        print(f"  connect: there is no {runner} (it needs Go); nothing is tested")
        return
    server = f"{OUT}/asan/tests/conformance/server"
    yield Step("server", make("PROFILE=asan", "CI=1", server), timeout=900, check=True)
    yield Step("connectconformance", ["tests/conformance/run.sh"], timeout=300, env={"CI": "1"})


def e2e_steps(env):
    """Each file in a world of its own, so that one cannot spoil the next."""
    for path in sorted(glob.glob("tests/e2e/*.test.mjs") + glob.glob("tests/e2e/test_*.py")):
        name = os.path.basename(path)
        yield Step(name, ["tests/e2e/run.sh", name], timeout=600, env=env)


def suite_e2e():
    """Real clients against the envd that is shipped, directly and through the proxy."""
    yield Step("static", make("PROFILE=static", "CI=1", "all"), timeout=900, check=True)
    yield Step("opt", make("PROFILE=opt", "CI=1", "all"), timeout=900, check=True)
    yield from e2e_steps({"ENVD_BIN": f"{OUT}/static/bin/envd", "PROXY_BIN": f"{OUT}/opt/bin/proxy"})


def suite_e2e_asan():
    """The same against the programs with sanitizers."""
    yield Step("asan", make("PROFILE=asan", "CI=1", "all"), timeout=900, check=True)
    # The client libraries by the road that takes most of both programs.
    yield from e2e_steps({"ENVD_BIN": f"{OUT}/asan/bin/envd", "PROXY_BIN": f"{OUT}/asan/bin/proxy",
                          "E2E_ROADS": "domain"})


def relay_steps(profile):
    """The proxy between scripted clients and scripted servers."""
    yield Step(profile, make(f"PROFILE={profile}", "CI=1", "all"), timeout=900, check=True)
    for path in sorted(glob.glob("tests/relay/test_*.py")):
        command = [sys.executable, "-B", path]
        yield Step(os.path.basename(path), command, timeout=600, env={"PROXY_BIN": f"{OUT}/{profile}/bin/proxy"})


def more_relay_steps(profile):
    """What else has a script for it: varnishtest's, and ten seconds of random traffic and change."""
    env = {"PROXY_BIN": f"{OUT}/{profile}/bin/proxy"}
    if shutil.which("varnishtest"):
        yield Step("varnishtest", ["tests/varnish/run.sh"], timeout=600, env=env, check=True)
    else:
        print("  varnishtest: it is not installed (Debian's varnish); its scripts are not played")
    yield Step("soak.py", [sys.executable, "-B", "tests/relay/soak.py", "10"], timeout=300, env=env, check=True)


def suite_relay():
    yield from relay_steps("opt")
    yield from more_relay_steps("opt")


def suite_relay_asan():
    yield from relay_steps("asan")
    yield from more_relay_steps("asan")


def suite_relay_tls():
    """What streams, tunnels, ends and misuse are tested with in plain text, over TLS."""
    yield Step("asan", make("PROFILE=asan", "CI=1", "all"), timeout=900, check=True)
    for name in ("upstreams", "responses", "bodies", "tunnels", "hostile", "smuggling", "lifecycle"):
        command = [sys.executable, "-B", f"tests/relay/test_{name}.py"]
        yield Step(f"test_{name}.py", command, timeout=600, env={"PROXY_BIN": f"{OUT}/asan/bin/proxy", "RELAY_TLS": "1"})


def suite_vm():
    """envd as process 1 of virtual machines, where QEMU and a kernel can be had."""
    yield Step("static", make("PROFILE=static", "CI=1", "all"), timeout=900, check=True)
    yield Step("machines", ["tests/vm/run.sh"], timeout=1800, env={"ENVD_BIN": f"{OUT}/static/bin/envd"})


def suite_tour():
    """What `make run` does, once."""
    if os.path.exists("packaging/run.sh"):
        yield Step("tour", ["make", "-s", "--no-print-directory", "run", "ONCE=1"], timeout=600, check=True)


SUITES = {
    "lint": suite_lint,
    "build": suite_build,
    "unit": suite_unit,
    "unit-asan": suite_unit_asan,
    "valgrind": suite_valgrind,
    "fuzz": suite_fuzz,
    "connect": suite_connect,
    "relay": suite_relay,
    "relay-asan": suite_relay_asan,
    "relay-tls": suite_relay_tls,
    "e2e": suite_e2e,
    "e2e-asan": suite_e2e_asan,
    "vm": suite_vm,
    "tour": suite_tour,
}
ON_REQUEST = {"valgrind-slow": suite_valgrind_slow}
# These run two steps at a time: they wait more than they compute.
PARALLEL = {"relay": 2, "relay-asan": 2, "relay-tls": 2, "e2e": 2, "e2e-asan": 2}


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


class Runner:
    """Runs steps, some side by side, and ends what they leave behind."""

    def __init__(self):
        self.lock = threading.Lock()
        self.active = set()
        self.root = set(os.listdir("/"))

    def start(self, step, output, env):
        with self.lock:
            process = subprocess.Popen(
                step.command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
            self.active.add(process.pid)
            return process

    def end_leftovers(self):
        """What a command started and left behind comes to us (subreaper); it must not disturb the next."""
        names = []
        with self.lock:
            for pid in children():
                if pid in self.active:
                    continue
                try:
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        line = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
                    if line:
                        names.append(line[:100])
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, FileNotFoundError):
                    pass
                try:
                    os.waitpid(pid, 0)
                except ChildProcessError:
                    pass
        return names

    def left_in_root(self):
        """Names in / that were not there before: a test that wrote somewhere else than it meant to."""
        with self.lock:
            now = set(os.listdir("/"))
            names, self.root = now - self.root, now
            return [f"/{name}" for name in sorted(names)]


def run_step(runner, step, log):
    env = dict(
        os.environ,
        OUT=OUT,
        UBSAN_OPTIONS="print_stacktrace=1",
        ASAN_OPTIONS="detect_leaks=1:strict_string_checks=1",
        **step.env,
    )
    tools = os.path.abspath(os.path.join(OUT, "tools/bin"))
    if os.path.isdir(tools):
        env["PATH"] = tools + ":" + env["PATH"]
    for inherited in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PROFILE", "CC"):
        env.pop(inherited, None)
    began = time.monotonic()
    note = ""
    if not shutil.which(step.command[0]):
        # What was to be built was not; that has failed already, and the other steps go on.
        failure = f"==== {step.name}: {step.command[0]} is not there\n"
        log.write(failure)
        return {"passed": 0, "failed": 1, "skipped": 0}, failure, []
    with tempfile.TemporaryFile() as output:
        process = runner.start(step, output, env)
        try:
            code = process.wait(step.timeout)
        except subprocess.TimeoutExpired:
            code, note = -1, f"did not end within {step.timeout} s"
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with runner.lock:
            runner.active.discard(process.pid)
            alone = not runner.active
        leftovers = runner.end_leftovers() if alone else []
        output.seek(0)
        text = ANSI.sub("", output.read().decode("utf-8", "replace"))

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if code == SKIP:
        counts["skipped"] = 1
        reason = text.strip().split("\n")[-1]
        print(f"  {step.name}: left out: {reason}", flush=True)
        code = 0
    elif step.check:
        counts["failed" if code else "passed"] = 1
    else:
        for line in text.split("\n"):
            for pattern, kind in COUNTS:
                match = re.match(pattern, line)
                if match:
                    counts[kind] += int(match.group(1))
        python_counts(text, counts)
        if not sum(counts.values()) and not code:
            code, note = -1, note or "ran no test"
        if code and not counts["failed"]:
            counts["failed"] = 1
    if code and not note:
        note = f"signal {-code}" if code < 0 else f"exit code {code}"
    with runner.lock:
        log.write(f"==== {step.name}: {' '.join(step.command)}\n{text}\n")
        log.write(f"---- {step.name}: {time.monotonic() - began:.1f} s {counts} {note}\n")
        for line in leftovers:
            log.write(f"---- left running: {line}\n")
        log.flush()
    failure = None
    if counts["failed"]:
        failure = f"==== {step.name}: {note}\n" + excerpt(text)
    return counts, failure, leftovers


def python_counts(text, counts):
    ran = re.search(r"^Ran (\d+) tests? in ", text, flags=re.M)
    if not ran:
        return
    closing = re.search(r"^(?:OK|FAILED)(?: \((.*)\))?$", text, flags=re.M)
    details = dict(re.findall(r"([a-z ]+)=(\d+)", closing.group(1) or "")) if closing else {}
    bad = sum(int(v) for k, v in details.items() if k.strip() in ("failures", "errors", "unexpected successes"))
    skipped = int(details.get("skipped", 0))
    counts["failed"] += bad
    counts["skipped"] += skipped
    counts["passed"] += max(int(ran.group(1)) - bad - skipped, 0)


def excerpt(text):
    """What a person wants to see first: the lines around the failures, else the end."""
    lines = [line for line in text.split("\n") if not re.match(r"\[ RUN |\[       OK|ok |\s+(duration_ms|---|\.\.\.)", line)]
    marks = [
        i
        for i, line in enumerate(lines)
        if re.search(r"\[  FAILED  \]|^\s*not ok|^# left running|^(FAIL|ERROR):|ERROR: \w+Sanitizer|runtime error:|: error:|Assertion", line)
    ]
    chosen = sorted({k for i in marks[:12] for k in range(max(0, i - 3), min(len(lines), i + 22))})
    if not chosen:
        chosen = range(max(0, len(lines) - 40), len(lines))
    return "\n".join(lines[i] for i in list(chosen)[:200])


def run_suite(runner, name):
    began = time.monotonic()
    sums = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []

    def take(step, result):
        counts, failure, leftovers = result
        for kind, number in counts.items():
            sums[kind] += number
        if failure:
            failures.append(f"[{name}] {failure}")
            print(f"  {name}: {step.name}: FAILED", flush=True)
        if leftovers:
            print(f"  {name}: {step.name}: left running: {'; '.join(leftovers[:3])}")
        if left := runner.left_in_root():
            print(f"  {name}: {step.name}: left in the root of the file system: {', '.join(left)}")

    with open(os.path.join(LOGS, f"{name}.log"), "w", encoding="utf-8") as log:
        steps = {**SUITES, **ON_REQUEST}[name]()
        waiting = []
        # Builds come first and alone; the rest of a parallel suite goes side by side.
        for step in steps:
            if step.check or name not in PARALLEL:
                take(step, run_step(runner, step, log))
            else:
                waiting.append(step)
        with concurrent.futures.ThreadPoolExecutor(PARALLEL.get(name, 1)) as pool:
            for step, result in zip(waiting, pool.map(lambda each: run_step(runner, each, log), waiting)):
                take(step, result)
    more = f", {sums['skipped']} skipped" if sums["skipped"] else ""
    print(f"{name:10} {sums['passed']:5} ok {sums['failed']:4} bad{more}  ({time.monotonic() - began:.0f} s)")
    return sums, failures


def main():
    names = sys.argv[1:] or list(SUITES)
    for name in names:
        if name not in SUITES and name not in ON_REQUEST:
            sys.exit(f"no suite {name}; there are: {' '.join([*SUITES, *ON_REQUEST])}")
    os.makedirs(LOGS, exist_ok=True)
    sys.stdout.reconfigure(line_buffering=True)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    runner = Runner()
    total = {"passed": 0, "failed": 0, "skipped": 0}
    failures = []
    for name in names:
        sums, failed = run_suite(runner, name)
        failures += failed
        for kind, number in sums.items():
            total[kind] += number
    for failure in failures:
        print("\n" + failure)
    if failures:
        print(f"\nfull output: {LOGS}/<suite>.log")
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
