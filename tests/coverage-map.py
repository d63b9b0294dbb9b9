#!/usr/bin/env python3
"""Which numbered cases have a test: tests/coverage-map.py [case:1-22,24] [conformance:...] [s:...]

Reads the numbers that exist from coverage-numbers.txt, looks for their names in every file under tests/,
and prints those without one. With arguments only the named numbers count, and the exit code says whether
all of them have a test.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BASES = {"case": "cases", "conformance": "conformance cases", "s": "proxy scenarios"}
NAME = re.compile(r"(?<![A-Za-z0-9])(case|conformance|s)_?(\d{3})(?![0-9A-Za-z])")


def known():
    numbers = {kind: {} for kind in BASES}
    with open(os.path.join(HERE, "coverage-numbers.txt"), encoding="utf-8") as file:
        for line in file:
            if line.strip() and not line.startswith("#"):
                kind, number, title = line.rstrip("\n").split(" ", 2)
                numbers[kind][int(number)] = title
    return numbers


def claimed():
    found = {kind: {} for kind in BASES}
    for folder, folders, files in os.walk(HERE):
        folders[:] = [f for f in folders if f not in ("node_modules", "corpus", "__pycache__")]
        for name in files:
            if name.startswith("coverage-") or not name.endswith((".c", ".mjs", ".py", ".sh", ".wire", ".txt")):
                continue
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8", errors="replace") as file:
                for kind, number in NAME.findall(name + "\n" + file.read()):
                    found[kind].setdefault(int(number), set()).add(os.path.relpath(path, HERE))
    return found


def selection(arguments):
    chosen = {kind: set() for kind in BASES}
    for argument in arguments:
        kind, _, ranges = argument.partition(":")
        if kind not in BASES:
            sys.exit(f"{argument}: write case:1-22,24 or conformance:... or s:...")
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            chosen[kind].update(range(int(first), int(last or first) + 1))
    return chosen


def main():
    numbers, found = known(), claimed()
    chosen = selection(sys.argv[1:])
    summary, missing_any = [], False
    for kind, title in BASES.items():
        wanted = {n for n in numbers[kind] if not sys.argv[1:] or n in chosen[kind]}
        if not wanted:
            continue
        missing = sorted(wanted - set(found[kind]))
        missing_any = missing_any or bool(missing)
        print(f"{title} without a test: {len(missing)} of {len(wanted)}")
        for number in missing:
            print(f"  {kind}{'' if kind == 's' else '_'}{number:03d}  {numbers[kind][number]}")
        summary.append(f"{title} {len(wanted) - len(missing)}/{len(wanted)}")
        for number in sorted(set(found[kind]) - set(numbers[kind])):
            print(f"  {kind} {number} is claimed by {', '.join(sorted(found[kind][number]))} but does not exist")
    print("with a test: " + ", ".join(summary))
    return 1 if sys.argv[1:] and missing_any else 0


if __name__ == "__main__":
    sys.exit(main())
