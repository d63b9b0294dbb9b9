"""Network namespaces for the relay tests, and what of them this machine allows."""
import os
import subprocess
import sys

# Brings lo up, serves `name` on the addresses it is told, one connection at a time.
SERVER = r"""
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))
name, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind((host, port))
listener.listen(64)
print(listener.getsockname()[1], flush=True)
while True:
    sock, _ = listener.accept()
    data = b""
    body = name.encode()
    try:
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more:
                break
            data += more
        sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    except OSError:
        pass  # a client that left
    sock.close()
"""


def can_unshare():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], stderr=subprocess.DEVNULL,
                                                check=False).returncode == 0


def can_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0


class Namespace:
    """A network namespace with one server in it."""

    def __init__(self, name, host="127.0.0.1", port=0):
        self.process = subprocess.Popen(["unshare", "--net", sys.executable, "-c", SERVER, name, host, str(port)],
                                        stdout=subprocess.PIPE)
        self.port = int(self.process.stdout.readline())
        self.path = f"/proc/{self.process.pid}/ns/net"
        self.address = f"netns:{self.path}"

    def run(self, *command):
        return subprocess.Popen(["nsenter", f"--net={self.path}", *command], stdout=subprocess.PIPE)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
