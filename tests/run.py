#!/usr/bin/env python3
"""Runs the whole suite, or the parts that are named: tests/run.py [SUITE...]; `check` is what to run after an edit.

With SUITE_UNTIL (seconds since 1970) no step begins after that time: what is left out is named, and counts as
skipped. What tests every promise once comes first, and then the same again under sanitizers and valgrind.

Each suite is a list of commands. What a command's runner says in its closing lines (cmocka, node:test,
unittest, or "N passed, N failed") is added up; a command that fails without saying so, or runs no test,
counts as one failure. Full output is in build/logs/<suite>.log; what failed is shown at the end, before
the one line that closes every run.
"""
import concurrent.futures
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

OUT = os.environ.get("OUT", "build")
LOGS = os.path.join(OUT, "logs")
# So many steps run at a time: many of them wait more than they compute.
AT_ONCE = os.cpu_count() + 1
LONGEST = 8  # so many steps are named at the end
STEP = [sys.executable, "-S", "-E", "-B", "tests/step.py"]
TIMED_OUT, LEFT_RUNNING = 124, "---- left running: "
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
    """One command of a suite. `check` steps count as one test themselves: building, linting. What `is_alone` comes
    before the others of these suites and has the machine to itself: builds, which use all of it and which others need."""

    def __init__(self, name, command, timeout=120, env=None, check=False, is_alone=False):
        self.name, self.command, self.timeout = name, command, timeout
        self.env, self.check, self.is_alone = env or {}, check, is_alone


def build(name, *arguments):
    return Step(name, make(*arguments), timeout=900, check=True, is_alone=True)


def make(*arguments):
    return ["make", "-s", "--no-print-directory", f"OUT={OUT}", f"-j{os.cpu_count()}", *arguments]


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def names_of(target, *arguments):
    return output_of(*make(*arguments, f"print-{target}"))


def suite_lint():
    yield Step("lint", make("lint"), timeout=600, is_alone=True)


def suite_build():
    """Warnings are errors, with both compilers. What the other suites run is built here, but for the sanitizers'."""
    for profile in ("dev", "clang", "opt"):
        yield build(profile, f"PROFILE={profile}", "CI=1", "all", "unit-build")
    yield build("fuzz", "PROFILE=fuzz", "CI=1", "fuzz-build")
    yield build("static", "PROFILE=static", "CI=1", "all")


def unit_steps(profile):
    for program in names_of("UNIT_PROGRAMS", f"PROFILE={profile}"):
        yield Step(program, [program], timeout=600)


def suite_unit():
    yield build("build", "PROFILE=dev", "CI=1", "all", "unit-build")
    yield from unit_steps("dev")
    # Once more as under old kernels and in sandboxes that refuse what starting processes, replays and downloads use where they can.
    for program in names_of("UNIT_PROGRAMS", "PROFILE=dev"):
        if "/envd/process/" in program or "/envd/jobs/" in program or program.endswith("/test_downloads_large"):
            yield Step(f"old kernel: {program}", [f"{OUT}/dev/tests/support/old_kernel", "ENOSYS", program], timeout=600)


def suite_unit_asan():
    yield build("build", "PROFILE=asan", "CI=1", "all", "unit-build")
    yield from unit_steps("asan")


# Minutes each, there. `tests/run.py valgrind-slow` has them; it is not part of the whole suite.
SLOW_UNDER_VALGRIND = re.compile(r"/test_(http_server_wire|rpc_memory|downloads|downloads_large|transfers_crowd)$")


def valgrind_steps(is_wanted):
    """Reads of memory that nobody has written, and what is lost. Processes start as on old kernels there. The programs
    look for leaks themselves (support/valgrind.h), and skip what valgrind cannot do, with the reason."""
    if not shutil.which("valgrind"):
        print("  valgrind: there is none; nothing is tested")
        return
    yield build("build", "PROFILE=dev", "CI=1", "all", "unit-build")
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
    yield build("build", "PROFILE=fuzz", "CI=1", "fuzz-build")
    yield from fuzz_steps(names_of("FUZZ_PROGRAMS", "PROFILE=fuzz"))


def fuzz_steps(programs):
    for program in programs:
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
    yield build("server", "PROFILE=asan", "CI=1", server)
    yield Step("connectconformance", ["tests/conformance/run.sh"], timeout=300, env={"CI": "1"})


def e2e_steps(env, pattern="*"):
    """Each file in a world of its own, so that one cannot spoil the next."""
    for path in sorted(glob.glob(f"tests/e2e/{pattern}.test.mjs") + glob.glob(f"tests/e2e/test_{pattern}.py")):
        name = os.path.basename(path)
        yield Step(name, ["tests/e2e/run.sh", name], timeout=600, env=env)


def suite_e2e():
    """Real clients against the envd that is shipped, directly and through the proxy."""
    yield build("static", "PROFILE=static", "CI=1", "all")
    yield build("opt", "PROFILE=opt", "CI=1", "all")
    yield from e2e_steps({"ENVD_BIN": f"{OUT}/static/bin/envd", "PROXY_BIN": f"{OUT}/opt/bin/proxy"})


def suite_e2e_asan():
    """The same against the programs with sanitizers."""
    yield build("asan", "PROFILE=asan", "CI=1", "all")
    # The client libraries by the road that takes most of both programs.
    yield from e2e_steps({"ENVD_BIN": f"{OUT}/asan/bin/envd", "PROXY_BIN": f"{OUT}/asan/bin/proxy",
                          "E2E_ROADS": "domain"})


def relay_steps(profile, names=("*",), **env):
    """The proxy between scripted clients and scripted servers."""
    for path in sorted(path for name in names for path in glob.glob(f"tests/relay/test_{name}.py")):
        command = [sys.executable, "-B", path]
        yield Step(os.path.basename(path), command, timeout=600, env={"PROXY_BIN": f"{OUT}/{profile}/bin/proxy", **env})


def more_relay_steps(profile):
    """What else has a script for it: varnishtest's, and ten seconds of random traffic and change."""
    env = {"PROXY_BIN": f"{OUT}/{profile}/bin/proxy"}
    if shutil.which("varnishtest"):
        yield Step("varnishtest", ["tests/varnish/run.sh"], timeout=600, env=env, check=True)
    else:
        print("  varnishtest: it is not installed (Debian's varnish); its scripts are not played")
    yield Step("soak.py", [sys.executable, "-B", "tests/relay/soak.py", "10"], timeout=300, env=env, check=True)


def suite_relay():
    yield build("opt", "PROFILE=opt", "CI=1", "all")
    yield from relay_steps("opt")
    yield from more_relay_steps("opt")


def suite_relay_asan():
    yield build("asan", "PROFILE=asan", "CI=1", "all")
    yield from relay_steps("asan")
    yield from more_relay_steps("asan")


def suite_relay_tls():
    """What streams, tunnels, ends and misuse are tested with in plain text, over TLS."""
    yield build("asan", "PROFILE=asan", "CI=1", "all")
    names = ("upstreams", "responses", "bodies", "tunnels", "hostile", "smuggling", "lifecycle")
    yield from relay_steps("asan", names, RELAY_TLS="1")


def suite_vm():
    """envd as process 1 of virtual machines, where QEMU and a kernel can be had."""
    yield build("static", "PROFILE=static", "CI=1", "all")
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
# What other suites test already, with more eyes on it.
AGAIN = {"unit-asan", "valgrind", "relay-asan", "relay-tls", "e2e-asan"}
ON_REQUEST = {"valgrind-slow": suite_valgrind_slow}


def check_lint():
    """Beside the tests: what it needs of the build is there by then."""
    yield Step("lint", make("lint"), timeout=600)


def check_build():
    yield build("dev", "PROFILE=dev", "CI=1", "all", "unit-build")


def check_fuzz():
    """What was changed since the branch left main: fuzzers, and what they are fed."""
    base = output_of("git", "merge-base", "HEAD", "main") or ["HEAD"]
    changed = output_of("git", "diff", "--name-only", *base, "--", "tests/fuzz")
    changed += output_of("git", "ls-files", "--others", "--exclude-standard", "tests/fuzz")
    programs = [program for program in names_of("FUZZ_PROGRAMS", "PROFILE=fuzz")
                if any(re.search(rf"/{os.path.basename(program)}[./]|\.h$", path) for path in changed)]
    if programs:
        yield build("build", "PROFILE=fuzz", "CI=1", *programs)
        yield from fuzz_steps(programs)


# `make check`: of each kind what finds most in little time, all of it with the build that is made by `make`. What depends
# on compilers, flags, machines and load is left to the whole suite.
CHECK = {
    "build": check_build,
    "lint": check_lint,
    "unit": lambda: unit_steps("dev"),
    "relay": lambda: relay_steps("dev", ("routing", "upstreams", "bodies", "responses", "tunnels", "http2", "http2_streams")),
    "e2e": lambda: e2e_steps({"ENVD_BIN": f"{OUT}/dev/bin/envd", "PROXY_BIN": f"{OUT}/dev/bin/proxy",
                              "E2E_ROADS": "domain"}, "sdk_e2b"),
    "fuzz": check_fuzz,
}


def missing_for_check():
    """Names of what it cannot do without."""
    yield from (tool for tool in ("gcc", "protoc-c", "unshare") if not shutil.which(tool))
    if not shutil.which("node") and not os.path.exists("build/tools/bin/node"):
        yield "node"
    if subprocess.run(["packaging/clang-format.sh", "--version"], capture_output=True, check=False).returncode:
        yield "clang-format 14"
    libraries = "tests/e2e/node_modules/.installed", "build/venv/.installed"
    yield from (path for path in libraries if not os.path.exists(path))


class Tally:
    """What is known of one suite: its sums, its log, and how long its steps took together."""

    def __init__(self, name, suite):
        self.name = name
        self.log = open(os.path.join(LOGS, f"{name}.log"), "w", encoding="utf-8")
        self.sums = {"passed": 0, "failed": 0, "skipped": 0}
        self.seconds = 0.0
        self.steps = list(suite())
        self.open_steps = len(self.steps)
        self.failures = []

    def line(self):
        more = f", {self.sums['skipped']} skipped" if self.sums["skipped"] else ""
        return f"{self.name:10} {self.sums['passed']:5} ok {self.sums['failed']:4} bad{more}  ({self.seconds:.0f} s)"


def left_in_root(known):
    """Names in / that were not there before: a test that wrote somewhere else than it meant to."""
    names = set(os.listdir("/")) - known
    known |= names
    return [f"/{name}" for name in sorted(names)]


def run_step(step):
    """Runs it to its end and gives back what it counted, what to show of a failure, its output for the log, what it
    left running, and its seconds."""
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
        return {"passed": 0, "failed": 1, "skipped": 0}, failure, failure, [], 0.0
    with tempfile.TemporaryFile() as output:
        code = subprocess.run([*STEP, str(step.timeout), *step.command], stdin=subprocess.DEVNULL, stdout=output,
                              stderr=subprocess.STDOUT, env=env, check=False).returncode
        output.seek(0)
        text = ANSI.sub("", output.read().decode("utf-8", "replace"))
    if code == TIMED_OUT:
        code, note = -1, f"did not end within {step.timeout} s"
    leftovers = [line[len(LEFT_RUNNING):] for line in text.split("\n") if line.startswith(LEFT_RUNNING)]

    counts = {"passed": 0, "failed": 0, "skipped": 0}
    if code == SKIP:
        counts["skipped"] = 1
        reason = text.strip().split("\n")[-1]
        print(f"  {step.name}: left out: {reason}")
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
    seconds = time.monotonic() - began
    record = (
        f"==== {step.name}: {' '.join(step.command)}\n{text}\n---- {step.name}: {seconds:.1f} s {counts} {note}\n"
    )
    failure = f"==== {step.name}: {note}\n" + excerpt(text) if counts["failed"] else None
    return counts, failure, record, leftovers, seconds


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


def in_turn(tallies):
    """Steps of all suites, one of each in turn, so that what computes runs beside what waits."""
    queues = [(tally, [step for step in tally.steps if not step.is_alone]) for tally in tallies]
    while queues := [(tally, steps) for tally, steps in queues if steps]:
        for tally, steps in queues:
            yield tally, steps.pop(0)


def leave_out(step):
    """As run_step, for a step that there is no time for."""
    print(f"  {step.name}: left out: the time that the suite has is over")
    return {"passed": 0, "failed": 0, "skipped": 1}, None, f"==== {step.name}: left out\n", [], 0.0


def main():
    names = sys.argv[1:] or list(SUITES)
    known = {**SUITES, **ON_REQUEST}
    is_check = names == ["check"]
    if is_check:
        names, known = list(CHECK), CHECK
        if missing := list(missing_for_check()):
            sys.exit(f"missing: {', '.join(missing)}. `make deps` installs it, or says what root has to install.")
    for name in names:
        if name not in known:
            sys.exit(f"no suite {name}; there are: {' '.join(known)}, or check alone")
    os.makedirs(LOGS, exist_ok=True)
    sys.stdout.reconfigure(line_buffering=True)
    began = time.monotonic()
    until = float(os.environ.get("SUITE_UNTIL", "inf"))
    root = set(os.listdir("/"))
    lock = threading.Lock()
    times = []

    def take(tally, step):
        is_late = time.time() > until
        counts, failure, record, leftovers, seconds = leave_out(step) if is_late else run_step(step)
        with lock:
            tally.log.write(record)
            tally.log.flush()
            tally.seconds += seconds
            times.append((seconds, f"{tally.name} {os.path.basename(step.name)}"))
            tally.open_steps -= 1
            for kind, number in counts.items():
                tally.sums[kind] += number
            if failure:
                tally.failures.append(f"[{tally.name}] {failure}")
                print(f"  {tally.name}: {step.name}: FAILED")
            if leftovers:
                print(f"  {tally.name}: {step.name}: left running: {'; '.join(leftovers[:3])}")
            if left := left_in_root(root):
                print(f"  {tally.name}: {step.name} or what ran beside it: left in the root of the file system: {', '.join(left)}")
            if not tally.open_steps:
                print(tally.line())

    tallies = [Tally(name, known[name]) for name in names]
    for is_again in (False, True):
        now = [tally for tally in tallies if (tally.name in AGAIN) == is_again]
        for tally in now:
            for step in tally.steps:
                if step.is_alone:
                    take(tally, step)
        # After an edit nobody wants to wait for what is not built.
        if is_check and any(tally.failures for tally in now):
            break
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: take(*each), in_turn(now)))

    failures = [failure for tally in tallies for failure in tally.failures]
    for failure in failures:
        print("\n" + failure)
    if failures:
        print(f"\nfull output: {LOGS}/<suite>.log")
    total = {kind: sum(tally.sums[kind] for tally in tallies) for kind in ("passed", "failed", "skipped")}
    skipped = f", {total['skipped']} skipped" if total["skipped"] else ""
    each = ", ".join(f"{tally.name} {tally.seconds:.0f} s" for tally in tallies)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes; each suite's steps together: {each}")
    print("longest: " + ", ".join(f"{name} {seconds:.0f} s" for seconds, name in sorted(times, reverse=True)[:LONGEST]))
    print(f"{total['passed']} passed, {total['failed']} failed{skipped}")
    return 1 if total["failed"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
