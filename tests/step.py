#!/usr/bin/env python3
"""Runs one command of a suite for tests/run.py: step.py SECONDS COMMAND [ARGUMENT...]

The command gets a session of its own and SECONDS of time. Whatever it leaves running is ended, so that it disturbs
no other test, and is named on standard output, a line each. This program then ends as the command did: with its exit
code, or by its signal; with TIMED_OUT when the time was over.
"""
import ctypes
import os
import resource
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36
TIMED_OUT = 124
LEFT_RUNNING = "---- left running: "


def children():
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def end_leftovers(names):
    """The orphans of what is killed come here as well, so this goes on until there are none."""
    while left := children():
        for pid in left:
            if line := command_line(pid):
                names.append(line[:100])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                pass


def main():
    seconds, command = float(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(command, start_new_session=True)
    names = []
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = TIMED_OUT
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        end_leftovers([])
    end_leftovers(names)
    for name in names:
        print(LEFT_RUNNING + name)
    sys.stdout.flush()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command's own is there already
        os.kill(os.getpid(), -code)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
