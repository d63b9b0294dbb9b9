#!/usr/bin/env python3
"""Namespaces under stress, and paths that lead into file systems which never answer: who names one harms himself."""
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from netns_support import Namespace, can_unshare
from support import Test, in_time, main, wait_for
from tunnel_support import ASK

# Mounts a file system at argv[1] whose server never says a word, in a mount namespace of its own, and becomes the
# rest of argv, which keeps the server's descriptor: when that ends, so does the file system.
DEAD_FILES = r"""
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
os.set_inheritable(fd, True)
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd):
    sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[2], sys.argv[2:])
"""

# Serves streams: takes a request, sends a head and one byte, and goes on when a byte comes.
TUNNELS = r"""
import fcntl, socket, struct, threading
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(sock):
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
    while True:
        data = sock.recv(65536)
        if not data:
            return
        sock.sendall(data)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


class NetnsTest(Test):
    workers = 1

    def namespace(self, *arguments, **options):
        made = Namespace(*arguments, **options)
        self.addCleanup(made.close)
        return made

    def ask(self, port, sandbox):
        answer = self.proxy.ask(f"{port}-{sandbox}.d")
        return answer.body.decode() if answer.status == 200 else (answer.status, answer.get("X-Proxy-Error"))


@unittest.skipUnless(can_unshare() and os.path.exists("/dev/fuse"), "needs root, network namespaces and /dev/fuse")
class Dead(NetnsTest):
    def test_s011_a_path_that_never_answers_harms_nobody_else(self):
        directory = tempfile.mkdtemp()
        self.addCleanup(os.rmdir, directory)
        self.prefix = ("unshare", "--mount", sys.executable, "-c", DEAD_FILES, directory)
        space = self.namespace("space")
        flags = [flag for i in range(12) for flag in ("--sandbox", f"dead{i}=netns:{directory}/ns{i}")]
        # Goes the way of those that could hang.
        flags += ["--sandbox", f"other=netns:/proc/{space.process.pid}/root{space.path}"]
        # At the end a leak checker would wait for the threads that hang.
        proxy = self.start("--sandbox", f"good={space.address}", *flags, sandboxes=(), env={"ASAN_OPTIONS": "detect_leaks=0"})
        self.assertEqual(self.ask(space.port, "good"), "space")
        self.assertEqual(self.ask(space.port, "other"), "space")
        threads = threads_of(proxy.process.pid)
        clients = []
        for i in range(12):
            client = proxy.connect()
            self.addCleanup(client.close)
            before = proxy.metric("proxy_dials_total")
            client.send(f"GET / HTTP/1.1\r\nHost: 80-dead{i}.d\r\n\r\n")
            clients.append(client)
            wait_for(lambda before=before: proxy.metric("proxy_dials_total") > before, "it to be dialled")

            def ask_the_good_one():
                began = time.monotonic()
                self.assertEqual(self.ask(space.port, "good"), "space")
                return time.monotonic() - began

            in_time(1, ask_the_good_one)
            if i < 6:
                self.assertEqual(self.ask(space.port, "other"), "space")
        for client in clients:
            self.assertEqual(client.response().get("X-Proxy-Error"), "upstream_timeout")
        self.assertEqual(self.ask(space.port, "good"), "space")
        self.assertLessEqual(threads_of(proxy.process.pid) - threads, 8)


@unittest.skipUnless(can_unshare(), "needs root and network namespaces")
class Many(NetnsTest):
    workers = 2

    def test_s018_a_thousand_dials_over_fifty_namespaces(self):
        first = self.namespace("n0")
        spaces = [first] + [self.namespace(f"n{i}", port=first.port) for i in range(1, 50)]
        flags = [flag for i, space in enumerate(spaces) for flag in ("--sandbox", f"n{i}={space.address}")]
        proxy = self.start(*flags, sandboxes=())
        wrong = []

        def hammer(offset):
            clients = []
            for i in range(25):
                name = f"n{(i * 7 + offset) % 50}"
                client = proxy.connect()
                client.send(f"GET / HTTP/1.1\r\nHost: {first.port}-{name}.d\r\nConnection: close\r\n\r\n")
                clients.append((name, client))
            for name, client in clients:
                response = client.response()
                if response is None or response.body.decode() != name:
                    wrong.append((name, response and response.body))
                client.close()

        def storm():
            hammers = [threading.Thread(target=hammer, args=(i * 3,)) for i in range(20)]
            for thread in hammers:
                thread.start()
            for thread in hammers:
                thread.join()
            self.assertEqual(wrong, [])
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of all")

        storm()
        # Two threads at most enter namespaces, and each keeps a descriptor of where it comes from.
        descriptors, threads = proxy.descriptors(), threads_of(proxy.process.pid)
        storm()
        wait_for(lambda: proxy.descriptors() <= descriptors, "descriptors")
        self.assertEqual(threads_of(proxy.process.pid), threads)
        # Nobody is left in a namespace: they go when their processes go.
        own = os.stat(f"/proc/{proxy.process.pid}/ns/net").st_ino

        def homes():
            tasks = f"/proc/{proxy.process.pid}/task"
            found = set()
            for task in os.listdir(tasks):
                with contextlib.suppress(FileNotFoundError):  # a thread that has ended meanwhile
                    found.add(os.stat(f"{tasks}/{task}/ns/net").st_ino)
            return found
        wait_for(lambda: homes() == {own}, lambda: f"the helpers to be at home in {own}: {homes()}")

    def test_s018_a_namespace_goes_while_a_tunnel_is_open(self):
        process = subprocess.Popen(["unshare", "--net", sys.executable, "-c", TUNNELS], stdout=subprocess.PIPE)
        self.addCleanup(process.stdout.close)
        port = int(process.stdout.readline())
        proxy = self.start("--sandbox", f"abc=netns:/proc/{process.pid}/ns/net", sandboxes=())
        client = proxy.connect()
        self.addCleanup(client.close)
        client.send(f"GET / HTTP/1.1\r\nHost: {port}-abc.d\r\n{ASK}\r\n")
        self.assertIn("101", client.head()[0])
        client.send("hello")
        self.assertEqual(client.take(5), b"hello")
        process.kill()
        process.wait()
        client.take_all()
        self.assertTrue(client.reset or client.eof)
        self.assertEqual(self.ask(port, "abc"), (502, "upstream_unreachable"))
        self.assertEqual(proxy.call("GET", "/health")[0], 200)

    def test_s005_paths_through_a_sandboxs_root(self):
        """What a sandbox has put into its own files is looked at before it is opened."""
        space = self.namespace("space")
        proxy = self.start(sandboxes=())
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "ns"))
            fifo = os.path.join(directory, "ns", "net")
            os.mkfifo(fifo)
            opened = []

            def wait_for_a_reader():
                opened.append(os.open(fifo, os.O_WRONLY))  # returns when somebody has it open for reading

            thread = threading.Thread(target=wait_for_a_reader, daemon=True)
            thread.start()
            proxy.call("PUT", "/sandboxes/odd", {"address": f"netns:/proc/{space.process.pid}/root{fifo}"})
            self.assertEqual(self.ask(80, "odd"), (502, "address_refused"))
            self.assertEqual(opened, [], "the pipe was opened")
            os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
            thread.join(5)
            for fd in opened:
                os.close(fd)


if __name__ == "__main__":
    main()
