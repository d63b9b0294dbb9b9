"""watch_storm.py ENVD_WATCH FOLDER SEEDS: random changes below a watched folder while envd-watch is stopped and goes on.

At the end a file is made in every directory: each has to be told, and what has been told has to amount to what is there.
Prints one line for each seed that fails; the exit status is 1 then. Without envd in between it is quick enough for many seeds.
"""
import os
import random
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

KINDS = "READY CREATE WRITE REMOVE RENAME CHMOD RESCANNED GONE FAILED".split()
HEAD = struct.Struct("=IBBH")
PATIENCE = 30


class Watch:
    """What a watch has told, as (kind, name)."""

    def __init__(self, program, root):
        self.helper = subprocess.Popen([program, root, "recursive"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.bytes = b""
        self.told = []
        self.has_ended = False
        self.until(lambda: ("READY", "") in self.told)

    def take(self):
        if not select.select([self.helper.stdout], [], [], 0.2)[0]:
            return
        got = os.read(self.helper.stdout.fileno(), 1 << 20)
        self.has_ended = not got
        self.bytes += got
        while len(self.bytes) >= HEAD.size:
            length, kind, _, _ = HEAD.unpack_from(self.bytes)
            if len(self.bytes) < HEAD.size + length:
                return
            self.told.append((KINDS[kind], self.bytes[HEAD.size:HEAD.size + length].decode()))
            self.bytes = self.bytes[HEAD.size + length:]

    def until(self, is_so):
        end = time.monotonic() + PATIENCE
        while not is_so():
            if self.has_ended or time.monotonic() > end:
                return False
            self.take()
        return True

    def names(self):
        names = set()
        for kind, name in self.told:
            if kind == "CREATE":
                names.add(name)
            elif kind in ("REMOVE", "RENAME"):
                names = {each for each in names if each != name and not each.startswith(name + "/")}
        return names

    def end(self):
        self.helper.kill()
        self.helper.communicate()


def names_below(root):
    return {os.path.relpath(os.path.join(folder, name), root)
            for folder, folders, files in os.walk(root) for name in folders + files}


def change(choice, root, outside):
    def inside():
        return "/".join([root] + [choice.choice("abcd") for _ in range(choice.randint(1, 4))])

    def out():
        return f"{outside}/{choice.randint(0, 3)}"

    kind = choice.random()
    try:
        if kind < .25:
            os.makedirs(inside(), exist_ok=True)
        elif kind < .5:
            with open(inside(), "a") as file:
                file.write("x")
        elif kind < .7:
            os.rename(inside(), inside())
        elif kind < .75:
            shutil.rmtree(inside())
        elif kind < .85:
            os.unlink(inside())
        elif kind < .9:
            os.rename(inside(), out())
        elif kind < .95:
            os.rename(out(), inside())
        elif kind < .97:
            os.symlink(outside, inside())
        else:
            os.link(inside(), inside())
    except OSError:
        pass


def run(program, folder, seed):
    choice = random.Random(seed)
    root, outside = tempfile.mkdtemp(dir=folder), tempfile.mkdtemp(dir=folder)
    watch = Watch(program, root)
    try:
        is_held = False
        for _ in range(choice.choice([20, 40, 80, 200, 1000])):
            if choice.random() < .1:
                is_held = not is_held
                watch.helper.send_signal(signal.SIGSTOP if is_held else signal.SIGCONT)
            change(choice, root, outside)
        watch.helper.send_signal(signal.SIGCONT)
        late = set()
        for each, _, _ in list(os.walk(root)):
            open(f"{each}/late", "w").close()
            late.add(os.path.relpath(f"{each}/late", root))
        if not watch.until(lambda: late <= {name for kind, name in watch.told if kind == "CREATE"}):
            missing = sorted(late - {name for kind, name in watch.told if kind == "CREATE"})
            return f"not told of {missing}, last {watch.told[-3:]}, status {watch.helper.poll()}"
        there = names_below(root)
        if not watch.until(lambda: watch.names() == there):
            return f"missing {sorted(there - watch.names())}, invented {sorted(watch.names() - there)}"
        return None
    finally:
        watch.end()
        shutil.rmtree(root)
        shutil.rmtree(outside)


def main(program, folder, seeds):
    failures = 0
    for seed in range(int(seeds)):
        failure = run(program, folder, seed)
        if failure:
            failures += 1
            print(f"seed {seed}: {failure}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
