#!/usr/bin/env python3
"""Prints every limit of lib/limits.h, envd/limits.h and proxy/limits.h, sorted by owner: `make limits`.

The owner is the heading it stands under, a comment that begins with a path and is followed by an empty line. What is
said of it is the first sentence of the comment before it, unless an empty line is between them.
"""
import os
import re
import sys

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

HEADERS = "lib/limits.h", "envd/limits.h", "proxy/limits.h"
COMMENT = re.compile(r"/\*(.*?)\*/", flags=re.S)
DEFINITION = re.compile(r"#define (\w+) (.*)")


def in_one_line(text):
    return " ".join(text.split())


def limits_of(header):
    """(owner, name, value, sentence) of each, in the order of the header."""
    with open(header, encoding="utf-8") as file:
        text = file.read().replace("\\\n", " ")
    owner = ""
    for paragraph in COMMENT.sub(lambda comment: f"/*{in_one_line(comment[1])}*/", text).split("\n\n"):
        sentence = ""
        for line in paragraph.split("\n"):
            comment, definition = COMMENT.fullmatch(line), DEFINITION.fullmatch(line)
            if comment and paragraph == line:
                owner = re.match(r"[\w/]+", comment[1])[0]
            elif comment:
                sentence = re.match(r".*?(\.(?= [A-Z])|$)", comment[1])[0]
            elif definition:
                yield owner, definition[1], in_one_line(definition[2]).removeprefix("(").removesuffix(")"), sentence


def main():
    limits = sorted((limit for header in HEADERS for limit in limits_of(header)), key=lambda limit: limit[0])
    widths = [max(len(limit[column]) for limit in limits) for column in range(2)]
    for owner, name, value, sentence in limits:
        print(f"{owner:{widths[0]}}  {name:{widths[1]}}  {value:22}  {sentence}".rstrip())


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        sys.stderr.close()
