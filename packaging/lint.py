#!/usr/bin/env python3
"""Holds the rules that keep the house readable: `make lint`.

Every check prints what it found, one line a finding, and counts as one in the closing line.
A line that breaks a rule of the call lists for a good reason says so with `lint-ok: <why>`.
"""
import ast
import collections
import concurrent.futures
import os
import re
import shlex
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

LINES_WARN = 600
LINES_MAX = 700
COLUMNS_MAX = 100

# Library headers and the only files that may include them.
WRAPPED = [
    (r"llhttp\.h", r"lib/http_parse\.c"),
    (r"jansson\.h", r"lib/json\.c|tests/.*"),
    (r"protobuf-c/|.*\.pb-c\.h", r"envd/rpc/.*|envd/cli/.*|envd/.*_service[a-z_]*\.[ch]|tests/.*"),
    (r"openssl/", r"lib/tls/.*\.c|tests/.*"),
    (r"nghttp2/", r"proxy/front/http2[a-z_]*\.[ch]|tests/.*"),
    (r"hiredis/", r"proxy/sources/redis[a-z_]*\.c|tests/.*"),
    (r"ares\.h", r"proxy/sources/dns_client\.c"),
    (r"inotifytools/", r"envd/watch/watcher_.*"),
    (r"sodium(/.*)?\.h", r"lib/digest\.c"),
    (r"zlib\.h", r"envd/rpc/gzip\.c|lib/gzip\.c|tests/.*"),
]

# Files of a domain that speak HTTP or RPC; everything else in a domain is plain functions and structs.
FACES = r"envd/[a-z]+/([a-z_]*_service[a-z_]*|files[a-z_]*|[a-z_]*_http|[a-z_]*rest)\.[ch]"
# envd/cli is the program `sandbox`, a client of envd: it knows HTTP and RPC, and none of the domains.
ROOFS = r"envd/(main|app|numbers|routes)\.[ch]|envd/cli/[a-z_]+\.[ch]"

# What a folder's inside may include of the others: those that stand before it. The order of README.md.
READING_ORDERS = (
    (
        "envd/rpc envd/init envd/gate envd/snapshot envd/forward envd/boot envd/filesystem envd/process envd/watch "
        "envd/host envd/jobs"
    ).split(),
    "proxy/route proxy/catalog proxy/sources proxy/wake proxy/relay proxy/front proxy/admin".split(),
)
CLIENT_KNOWS = r"envd/(cli|rpc)/.*|(envd/limits|envd/filesystem/path|lib/process/exit_record)\.h"

BANNED_CALLS = (
    "strcpy stpcpy strcat strncat strncpy sprintf vsprintf strtok gets system popen alloca tmpnam mktemp "
    "gethostbyname inet_ntoa asctime ctime rand srand signal error canonicalize_file_name qsort_r backtrace "
    "atoi atol atoll bzero bcopy index rindex fork vfork"
).split()

# These files run on the loop's thread from end to end.
ON_LOOP = (
    r"lib/(http[a-z_]*|stream[a-z_]*|loop|tls/(?!tls_(certificate|store|development)\.c)[a-z_]+)\.c|"
    r"envd/(routes|app)\.c|envd/rpc/.*\.c|envd/[a-z]+/[a-z_]*_service[a-z_]*\.c|proxy/(front/(?!heap_keeper\.c)|relay/).*\.c"
)
BLOCKING_CALLS = (
    "fopen freopen fgets fread opendir readdir scandir stat lstat fstatat statx open openat creat unlink unlinkat rename "
    "renameat mkdir mkdirat rmdir realpath readlink readlinkat symlink link chmod chown lchown fchownat truncate "
    "fsync fdatasync sendfile copy_file_range getpwnam getpwuid getpwnam_r getpwuid_r getgrnam getgrgid getgrouplist "
    "initgroups getaddrinfo getnameinfo sleep usleep nanosleep wait waitpid wait4 flock lockf"
).split()

# Calls of libuv that go through one door, and the only files that may make them themselves.
DOORS = [
    ("uv_async_init uv_async_send".split(), r"lib/mailbox\.c", "lib/mailbox.h"),
    ("uv_timer_init uv_timer_start".split(), r"lib/alarm\.c", "lib/alarm.h"),
]

# What the code between clone and exec may ask of libc: the thinnest wrappers and nothing else.
CHILD_OBJECT = "lib/process/child.o"
CHILD_SYMBOLS = (
    "syscall __errno_location errno_location memcpy memset memmove strlen environ __environ __stack_chk_fail "
    "execve dup2 dup3 close write read open openat chdir setsid ioctl _exit kill getpid sigaction sigprocmask "
    "rt_sigprocmask setpriority umask prctl fcntl setrlimit prlimit strchr memchr _GLOBAL_OFFSET_TABLE_ "
    "sigemptyset sigfillset"
).split()

# Files that hold the helpers by which tests let time pass, and those which ask again until a condition is true.
PAUSES = r"tests/e2e/support/(pauses|timers|programs)\.mjs|tests/e2e/support/(programs|sdk_suite)\.py|tests/relay/support\.py"

# Names of machines and folders that must not stand in any file.
PRIVATE = (
    r"(?<![A-Za-z0-9_.])/work/[\w.]+/\w|deb\.debian\.org|security\.debian\.org|registry\.npmjs|pypi\.org|"
    r"pythonhosted|proxy\.golang|crates\.io|repo1?\.maven"
)

C_KEYWORD_SPACE = re.compile(r"\b(if|for|while|switch)\(")


def run(*command, **more):
    return subprocess.run(command, capture_output=True, text=True, **more)


TRACKED = [
    f
    for f in run("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.split("\n")
    if f and os.path.isfile(f)
]
C_FILES = [f for f in TRACKED if f.endswith((".c", ".h"))]
SOURCES = [f for f in C_FILES if not f.startswith("tests/")]


def text_of(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def blank_out(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(path):
    """The text without comments, string and character literals; line numbers stay."""
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    keep_includes = re.sub(r'(#include )"([^"\n]*)"', r"\1<<\2>>", text_of(path))
    return re.sub(pattern, blank_out, keep_includes, flags=re.S)


def includes_of(path):
    for number, line in enumerate(text_of(path).split("\n"), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if match:
            yield number, match.group(1), match.group(2)


def is_later(name, path):
    """Whether the folder of the file `name` stands behind that of `path`."""
    folders = os.path.dirname(name), os.path.dirname(path)
    return any(
        order.index(folders[0]) > order.index(folders[1])
        for order in READING_ORDERS
        if order.count(folders[0]) and order.count(folders[1])
    )


def check_include_direction():
    for path in SOURCES:
        for number, kind, name in includes_of(path):
            where = f"{path}:{number}: "
            if name.startswith("../") or (kind == '"' and "/" not in name and name != "build_info.h"):
                yield where + f'write the path from the top: "{name}"'
            if kind == "<" and os.path.isfile(name):
                yield where + f'<{name}> is ours: use quotes'
            if path.startswith("lib/") and re.match(r"(envd|proxy|proto|tests)/", name):
                yield where + f"lib knows nothing of {name}"
            if path.startswith("envd/") and re.match(r"(proxy|tests)/", name):
                yield where + f"envd does not include {name}"
            if path.startswith("proxy/") and re.match(r"(envd|proto|tests)/", name):
                yield where + f"proxy does not include {name}"
            if is_later(name, path) and not re.fullmatch(FACES, path):
                yield where + f"{name} stands behind this folder in the reading order"
            if path.startswith("envd/cli/") and name.startswith("envd/") and not re.fullmatch(CLIENT_KNOWS, name):
                yield where + f"the client does not know {name}"
            if path.startswith("envd/") and not path.startswith("envd/cli/") and re.match(r"envd/cli/|lib/tls/", name):
                yield where + f"envd contains no client and no TLS: {name}"
            if not path.startswith("envd/") or re.fullmatch(ROOFS, path):
                continue
            # routes.c gives each service what it works on, so that nothing below has to know the whole app.
            if name in ("envd/routes.h", "envd/app.h"):
                yield where + f"only main, app, numbers and routes know {name}"
            is_inside = not path.startswith("envd/rpc/") and not re.fullmatch(FACES, path)
            if is_inside and re.match(r"envd/rpc/|lib/http|proto/", name):
                yield where + f"a domain's inside does not know {name}; that belongs in its *_service.c"


def room_of(path):
    """The folder; the services of envd's domains, which know other domains, are a room of their own above these."""
    is_service = re.fullmatch(FACES, path) and not path.startswith("envd/host/")
    return "envd/*_service" if is_service else os.path.dirname(path)


def check_folders_stand_on_each_other():
    """Prints each with its level and what it includes. The limits of a program stand below all of it."""
    graph = {room_of(path): {} for path in SOURCES}
    for path in SOURCES:
        for number, _, name in includes_of(path):
            if name in SOURCES and os.path.basename(name) != "limits.h" and room_of(name) != room_of(path):
                graph[room_of(path)].setdefault(room_of(name), f"{path}:{number} includes {name}")
    below = set()
    for level in range(len(graph)):
        here = [room for room in sorted(graph) if room not in below and below.issuperset(graph[room])]
        for room in here:
            print(f"{level} {room} -> {' '.join(sorted(graph[room]))}".removesuffix(" -> "))
        below.update(here)
    circles = graph.keys() - below
    while outside := {room for room in circles if not any(room in graph[other] for other in circles)}:
        circles -= outside
    for room in sorted(circles):
        for other in sorted(circles & graph[room].keys()):
            yield f"{room} -> {other} is part of a circle: {graph[room][other]}"


def check_include_cycles():
    graph = {f: [n for _, k, n in includes_of(f) if k == '"' and n in C_FILES] for f in C_FILES if f.endswith(".h")}
    done, path = set(), []

    def visit(node):
        if node in path:
            yield "headers include each other: " + " -> ".join(path[path.index(node):] + [node])
            return
        if node in done:
            return
        path.append(node)
        for following in graph.get(node, []):
            yield from visit(following)
        path.pop()
        done.add(node)

    for header in graph:
        yield from visit(header)


def check_wrapped_libraries():
    for path in C_FILES:
        for number, _, name in includes_of(path):
            for library, owners in WRAPPED:
                if re.match(library, name) and not re.fullmatch(owners, path):
                    yield f"{path}:{number}: <{name}> is included by {owners} only"


def find_calls(path, names):
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(names) + r")\s*\(")
    original = text_of(path).split("\n")
    for number, line in enumerate(code_of(path).split("\n"), 1):
        for match in pattern.finditer(line):
            # A declaration or definition of our own static function of that name is not a call.
            if "lint-ok:" in original[number - 1]:
                continue
            yield number, match.group(1)


def check_banned_calls():
    for path in C_FILES:
        names = BANNED_CALLS if not path.startswith("tests/") else [n for n in BANNED_CALLS if n not in ("fork", "vfork", "system", "signal", "strcpy", "strcat", "sprintf", "atoi")]
        for number, name in find_calls(path, names):
            yield f"{path}:{number}: {name}() is banned"


def check_there_is_one_door():
    for path in SOURCES:
        for names, owners, door in DOORS:
            if re.fullmatch(owners, path):
                continue
            for number, name in find_calls(path, names):
                yield f"{path}:{number}: {door} is used instead of {name}()"


def check_nothing_blocks_the_loop():
    for path in SOURCES:
        if not re.fullmatch(ON_LOOP, path):
            continue
        code = code_of(path)
        own = set(re.findall(r"^static [^;{}()]*?\b(\w+)\(", code, flags=re.M))
        for number, name in find_calls(path, [n for n in BLOCKING_CALLS if n not in own]):
            yield f"{path}:{number}: {name}() blocks, and this file runs on the loop; use lib/job.h"


def make_variable(name):
    return run("make", "-s", "--no-print-directory", f"print-{name}").stdout.strip()


def check_headers_compile_alone():
    flags = shlex.split(make_variable("CPPFLAGS")) + shlex.split(make_variable("CFLAGS"))
    headers = [f for f in C_FILES if f.endswith(".h")]

    def compiled(path):
        return run("gcc", *flags, "-fsyntax-only", "-x", "c", "-include", path, "/dev/null")

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compiled, headers))
    for path, result in zip(headers, results):
        if result.returncode or result.stderr:
            yield f"{path}: does not compile alone:\n{result.stderr.strip()}"


def check_header_guards_and_openings():
    for path in (f for f in SOURCES if f.endswith(".h")):
        guard = re.sub(r"[/.]", "_", path).upper()
        text = text_of(path)
        if f"#ifndef {guard}\n#define {guard}\n" not in text:
            yield f"{path}: the guard is {guard}"
        if not text.startswith("/*"):
            yield f"{path}: a header opens with what the module is for"


def check_limits_stand_with_their_owners():
    """In lib/limits.h is what lib/ itself or both envd/ and proxy/ use, and nothing is kept that nobody uses."""
    folders = "lib", "envd", "proxy"
    code = {folder: "".join(code_of(f) for f in SOURCES if f.startswith(folder + "/")) for folder in folders}
    words = {folder: collections.Counter(re.findall(r"\w+", text)) for folder, text in code.items()}
    for folder in folders:
        path = f"{folder}/limits.h"
        for name in re.findall(r"^#define (\w+) ", text_of(path), flags=re.M):
            users = [f for f in folders if words[f][name] > (f == folder)]
            if not users:
                yield f"{path}: nobody uses {name}"
            elif folder == "lib" and users in (["envd"], ["proxy"]):
                yield f"{path}: {name} belongs into {users[0]}/limits.h"


def check_file_length():
    for path in SOURCES:
        lines = text_of(path).count("\n")
        if lines > LINES_MAX:
            yield f"{path}: {lines} lines; one reason to exist per file, at most {LINES_MAX} lines"
        elif lines > LINES_WARN:
            print(f"note: {path}: {lines} lines")


def check_text():
    for path in C_FILES:
        for number, line in enumerate(text_of(path).split("\n"), 1):
            where = f"{path}:{number}: "
            if line != line.rstrip():
                yield where + "blanks at the end"
            if re.search(r"\b(XXX|TODO|FIXME)\b", line):
                yield where + "unfinished business belongs in an issue, a known bound is marked LIMIT:"
            if re.match(r" {8}", line):
                yield where + "indent with tabs"
            if len(line.expandtabs(8)) > COLUMNS_MAX:
                yield where + f"{len(line.expandtabs(8))} columns"
        if C_KEYWORD_SPACE.search(code_of(path)):
            yield f"{path}: a blank belongs after if, for, while, switch"


def check_format():
    result = run("packaging/clang-format.sh", "--dry-run", "-Werror", *C_FILES)
    wrong = sorted(set(re.findall(r"^([^\s:]+):\d+:\d+: error:", result.stderr, flags=re.M)))
    for path in wrong:
        yield f"{path}: is not laid out as .clang-format says; `make format` does it"
    if result.returncode and not wrong:
        yield result.stderr.strip()


def check_nothing_generated_is_tracked():
    for path in run("git", "ls-files").stdout.split("\n"):
        if re.search(r"\.(o|a|d|so|pb-c\.[ch]|pyc)$|(^|/)(node_modules|__pycache__|build)/", path):
            yield f"{path}: is made by the build"


def check_child_symbols():
    path = os.path.join(make_variable("O"), CHILD_OBJECT)
    if not os.path.exists(CHILD_OBJECT.replace(".o", ".c")):
        return
    built = run("make", "-s", path)
    if built.returncode:
        yield built.stderr.strip()
        return
    for line in run("nm", "-u", path).stdout.split("\n"):
        symbol = line.split()[-1].split("@")[0] if line.split() else ""
        if symbol and symbol not in CHILD_SYMBOLS:
            yield f"{CHILD_OBJECT}: calls {symbol}, which is not safe between clone and exec"


def check_scripts():
    scripts = [
        f
        for f in TRACKED
        if f.endswith(".sh") or (not os.path.splitext(f)[1] and re.match(r"#!.*\b(ba|da)?sh\b", text_of(f)[:40]))
    ]
    if scripts and run("sh", "-c", "command -v shellcheck").returncode == 0:
        result = run("shellcheck", "-f", "gcc", *scripts)
        yield from result.stdout.strip().split("\n") if result.returncode else []
    for path in (f for f in TRACKED if f.endswith(".py")):
        try:
            ast.parse(text_of(path), path)
        except SyntaxError as error:
            yield f"{path}:{error.lineno}: {error.msg}"
    for path in scripts:
        if text_of(path).startswith("#!") and not os.access(path, os.X_OK):
            yield f"{path}: is not executable"


def check_no_private_names():
    for path in TRACKED:
        if path == "packaging/lint.py" or os.path.getsize(path) > 1 << 20 or "/corpus/" in path:
            continue
        for number, line in enumerate(text_of(path).split("\n"), 1):
            if re.search(PRIVATE, line):
                yield f"{path}:{number}: names a folder or host that is not the project's"


def check_test_names():
    for path in TRACKED:
        if not path.startswith("tests/"):
            continue
        if re.match(r"tests/unit/.*\.c$", path) and not os.path.basename(path).startswith("test_"):
            yield f"{path}: tests are test_<module>.c, what they share is in tests/support"
        if path.endswith((".c", ".mjs", ".py", ".wire", ".sh")):
            for number, line in enumerate(text_of(path).split("\n"), 1):
                for name in re.findall(r"\b(?:case|conformance|s)_?\d+(?:_\w+)+", line):
                    if re.match(r"(case|conformance|s)_?\d", name) and not re.match(r"(case_|conformance_|s)\d{3}(_|$)", name):
                        yield f"{path}:{number}: {name}: numbers have three digits (case_007_..., conformance_132_..., s012_...)"


def sleeps_of(path):
    """Lines with a timer of a JavaScript test, or a sleep of a Python one; not those of programs that it has in strings."""
    text = text_of(path)
    if path.endswith(".mjs"):
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(r"(?<![\w.])(setTimeout|sleep)\(", line) and "lint-ok:" not in line:
                yield number
        return
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sleep", "time.sleep", "asyncio.sleep"):
            if "lint-ok:" not in text.split("\n")[node.lineno - 1]:
                yield node.lineno


def check_tests_wait_for_conditions():
    for path in TRACKED:
        if re.match(r"tests/(e2e|vm)/.*\.mjs$|tests/(relay|e2e|vm)/.*\.py$", path) and not re.fullmatch(PAUSES, path):
            for number in sleeps_of(path):
                yield f"{path}:{number}: wait for a condition; where time is the subject, quietFor and pace say so (tests/README.md)"


def check_proto_numbers():
    for path in (f for f in TRACKED if f.startswith("proto/") and f.endswith(".proto")):
        if re.search(r"^\s*optional\b", text_of(path), flags=re.M):
            yield f"{path}: write an optional field as a oneof of one (design: protobuf-c refuses optional)"


def main():
    chosen = sys.argv[1:]
    passed = failed = 0
    for name, check in list(globals().items()):
        if not name.startswith("check_") or (chosen and name[len("check_"):] not in chosen):
            continue
        findings = list(check())
        title = name[len("check_"):].replace("_", " ")
        if findings:
            failed += 1
            print(f"lint: {title}:")
            for finding in findings[:60]:
                print("  " + finding)
            if len(findings) > 60:
                print(f"  ... and {len(findings) - 60} more")
        else:
            passed += 1
    print(f"lint: {passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
