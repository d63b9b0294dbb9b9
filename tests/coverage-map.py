#!/usr/bin/env python3
"""Which numbered cases have a test: tests/coverage-map.py [case:1-22,24] [conformance:...] [s:...]

Reads the numbers that exist from coverage-numbers.txt, looks for their names in every file under tests/,
and prints those without one: first those that README.md ("Numbers without a test on purpose") gives a reason
for, then those that are missing. With arguments only the named numbers count. Exits with 1 if one is missing.
"""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BASES = {"case": "cases", "conformance": "conformance cases", "s": "proxy scenarios"}
DELIBERATE = re.compile(r"^\| (case|conformance|s) ([0-9, -]+) \| (.+) \|$", re.MULTILINE)
NAME = re.compile(r"(?<![A-Za-z0-9])(case|conformance|s)_?(\d{3})(?![0-9A-Za-z])")


def name_of(kind, number):
    return f"{kind}{'' if kind == 's' else '_'}{number:03d}"


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


def numbers_in(ranges):
    for part in ranges.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def deliberate():
    """{kind: {number: reason}} from the table in README.md: rows of `| conformance 41, 175-181 | why |`."""
    reasons = {kind: {} for kind in BASES}
    with open(os.path.join(HERE, "README.md"), encoding="utf-8") as file:
        for kind, ranges, why in DELIBERATE.findall(file.read()):
            reasons[kind].update({number: why for number in numbers_in(ranges)})
    return reasons


def selection(arguments):
    chosen = {kind: set() for kind in BASES}
    for argument in arguments:
        kind, _, ranges = argument.partition(":")
        if kind not in BASES:
            sys.exit(f"{argument}: write case:1-22,24 or conformance:... or s:...")
        chosen[kind].update(numbers_in(ranges))
    return chosen


def main():
    numbers, found, reasons = known(), claimed(), deliberate()
    chosen = selection(sys.argv[1:])
    summary, missing_any = [], False
    for kind, title in BASES.items():
        wanted = {n for n in numbers[kind] if not sys.argv[1:] or n in chosen[kind]}
        if not wanted:
            continue
        without = wanted - set(found[kind])
        otherwise = sorted(without & set(reasons[kind]))
        missing = sorted(without - set(reasons[kind]))
        missing_any = missing_any or bool(missing)
        if otherwise:
            print(f"{title} without a test on purpose: {len(otherwise)} of {len(wanted)}")
        for number in otherwise:
            print(f"  {name_of(kind, number)}  {reasons[kind][number].split(':')[0]}")
        print(f"{title} without a test: {len(missing)} of {len(wanted)}")
        for number in missing:
            print(f"  {name_of(kind, number)}  {numbers[kind][number]}")
        summary.append(f"{title} {len(wanted) - len(without)}/{len(wanted)}")
        for number in sorted(set(reasons[kind]) & set(found[kind]) & wanted):
            print(f"  {name_of(kind, number)} has a test and a reason for having none")
        for number in sorted(set(found[kind]) - set(numbers[kind])):
            print(f"  {kind} {number} is claimed by {', '.join(sorted(found[kind][number]))} but does not exist")
    print("with a test: " + ", ".join(summary))
    return 1 if missing_any else 0


if __name__ == "__main__":
    sys.exit(main())
