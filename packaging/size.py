#!/usr/bin/env python3
"""Prints how many lines each folder of the product has, then how large the programs are as shipped: `make size`."""
import collections
import os
import re
import subprocess
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

SHIPPED = "static/bin/envd", "static/bin/envd-watch", "opt/bin/proxy", "opt/bin/sandbox"
# A string may hold what looks like a comment.
STRING_OR_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', flags=re.S)


def lines_of(path):
    """All of them, and those that have code."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    code = STRING_OR_COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else "", text)
    return collections.Counter(all=text.count("\n"), code=sum(1 for line in code.split("\n") if line.strip()))


def main():
    print(f"{'lines':>7} {'of code':>8}")
    total = collections.Counter()
    for top in "lib", "envd", "proxy":
        files = subprocess.run(["git", "ls-files", top], capture_output=True, text=True, check=True).stdout.split()
        folders = collections.defaultdict(collections.Counter)
        for path in files:
            if path.endswith((".c", ".h")) and os.path.isfile(path):
                folders[os.path.dirname(path)] += lines_of(path)
        for name, lines in sorted(folders.items()):
            print(f"{lines['all']:7} {lines['code']:8}  {name}")
            total += lines
    print(f"{total['all']:7} {total['code']:8}  all of it")
    programs = [f"{sys.argv[1]}/{name}" for name in SHIPPED]
    built = [path for path in programs if os.path.isfile(path)]
    for path in programs:
        if path not in built:
            print(f"{path} is not built")
    if built:
        sys.stdout.flush()
    subprocess.run(["size", *built], check=True)


if __name__ == "__main__":
    main()
