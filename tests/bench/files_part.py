"""The part `files` of the bench: a file of a gigabyte down, beside nginx, and up, beside a socket that is copied to a file."""
import contextlib
import os
import statistics
import subprocess
import sys

import bench
import rivals

SIZE = 1 << 30


def measure():
    with bench.temporary_folder() as folder:
        path = f"{folder}/file"
        with open(path, "wb") as file:
            for _ in range(SIZE // bench.MIB):
                file.write(b"\0" * bench.MIB)
        with rivals.nginx_files(folder, folder) as nginx, bench.envd() as server:
            measure_downloads(server.port, nginx.port, path)
        with bench.envd() as server:
            measure_uploads(server.port, folder)
            measure_uploads_over_empty(server.port, folder)


def measure_downloads(ours_port, port, path):
    """In turns, and the median: both have luck or not with which of the two processors sleeps when the client is woken,
    which makes a factor of two, nginx (it corks the socket) more often not."""
    target = f"/files?username=root&path={path}"
    status = bench.client(ours_port, "download", target)["status"]
    if status != 200:
        raise RuntimeError(f"download answered {status}")
    rounds = [(bench.client(port, "download", "/file")["seconds"], bench.client(ours_port, "download", target)["seconds"])
              for _ in range(12)][1:]
    beside, ours = (statistics.median(each) for each in zip(*rounds))
    bench.row("download of 1 GiB", f"{SIZE / ours / 1e9:.2f} GB/s", f"nginx with sendfile {SIZE / beside / 1e9:.2f} GB/s",
              beside / ours, "≥ 0.90 ×", beside / ours >= 0.9)
    beside, ours = (min(each) for each in zip(*rounds))
    bench.row("  the best of 11", f"{SIZE / ours / 1e9:.2f} GB/s", f"nginx with sendfile {SIZE / beside / 1e9:.2f} GB/s", beside / ours)


def measure_uploads(port, folder):
    """Alternately and each into memory that the one before has just freed: in a virtual machine a page cache that
    grows for the first time, or again after it was given back to the host, costs several times the copying, and
    would count against whoever comes first."""
    plain, new, over = [], [], []

    def upload(times):
        result = bench.client(port, "upload", f"/files?username=root&path={folder}/up", SIZE)
        if result["status"] != 200:
            raise RuntimeError(f"upload answered {result['status']}")
        times.append(result["seconds"])

    for _ in range(16):
        plain.append(plain_copy(f"{folder}/plain"))
        os.unlink(f"{folder}/plain")
        upload(new)
        os.unlink(f"{folder}/up")
    # A new file is published as it is; an existing one keeps its inode and gets the content copied.
    upload([])
    for _ in range(4):
        upload(over)
    os.unlink(f"{folder}/up")
    # The first of each has warmed up.
    plain, new, over = (statistics.median(times[1:]) for times in (plain, new, over))
    bench.row("upload of 1 GiB", f"{SIZE / new / 1e9:.2f} GB/s", f"socket to file {SIZE / plain / 1e9:.2f} GB/s",
              plain / new, "≥ 0.90 ×", plain / new >= 0.9)
    bench.row("  the same over an existing file", f"{SIZE / over / 1e9:.2f} GB/s", "written twice where files cannot share blocks")


def measure_uploads_over_empty(port, disk):
    """A file that is there and empty beside one that is not there, in turns, on the disk and in memory."""
    memory = bench.temporary_folder("/dev/shm") if has_room("/dev/shm") else contextlib.nullcontext()
    with memory as in_memory:
        for place, name in ((disk, "a disk"), (in_memory, "tmpfs")):
            if place:
                measure_over_empty(port, f"{place}/up", name)


def has_room(place):
    fs = os.statvfs(place)
    return fs.f_bavail * fs.f_frsize > SIZE + SIZE // 4


def measure_over_empty(port, path, name):
    times = {True: [], False: []}
    for round in range(9):
        # Who comes second in one round is first in the next.
        for is_empty in (round % 2 == 0, round % 2 == 1):
            if is_empty:
                open(path, "wb").close()
            result = bench.client(port, "upload", f"/files?username=root&path={path}", SIZE)
            if result["status"] != 200:
                raise RuntimeError(f"upload answered {result['status']}")
            times[is_empty].append(result["seconds"])
            os.unlink(path)
    # The first of each has warmed up.
    over, new = (statistics.median(times[is_empty][1:]) for is_empty in (True, False))
    bench.row(f"  the same over an empty file, on {name}", f"{SIZE / over / 1e9:.2f} GB/s", f"a new one {SIZE / new / 1e9:.2f} GB/s",
              new / over, "≥ 0.95 ×", new / over >= 0.95)


def plain_copy(path):
    """A socket copied to a file with the same client sending."""
    port = bench.free_port()
    program = (
        "import socket,sys\n"
        f"s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1); s.bind(('127.0.0.1',{port})); s.listen(1)\n"
        "print('ready',flush=True); c,_=s.accept(); b=bytearray(262144); head=c.recv(4096); n=len(head)-head.index(b'\\r\\n\\r\\n')-4\n"
        f"f=open({path!r},'wb',buffering=0); m=memoryview(b)\n"
        f"while n<{SIZE}:\n g=c.recv_into(b)\n f.write(m[:g])\n n+=g\n"
        "c.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
    )
    with bench.Running(sys.executable, "-c", program, stdout=subprocess.PIPE) as server:
        server.process.stdout.readline()
        return bench.client(port, "upload", "/x", SIZE)["seconds"]
