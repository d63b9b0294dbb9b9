"""A proxy that is followed by others on the same sockets."""
import json
import os
import signal
import socket

from support import PATIENCE, Connection, Test, TlsSocket, wait_for


def is_alive(pid):
    """Also when its first thread has ended, but not yet the others, who keep its sockets open."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            ended = file.read().rsplit(")", 1)[1].split()[0] in "ZX"
        return not ended or len(os.listdir(f"/proc/{pid}/task")) > 1
    except (FileNotFoundError, ProcessLookupError):
        return False


def resume(proxy, context, session=None):
    """A connection over TLS with one answer, which brings the tickets of TLS 1.3 along; what its TLS came to."""
    sock = socket.create_connection(("127.0.0.1", proxy.tls_port), PATIENCE)
    with Connection(TlsSocket(sock, context, "a.sbx.localhost", session)) as client:
        client.send("GET / HTTP/1.1\r\nHost: 1-nosuch.sbx.localhost\r\n\r\n")
        assert client.response().status == 502
        return client.sock.tls


class Following(Test):
    """A proxy that is followed by others on the same sockets."""

    flags = ("--allow-loopback-upstreams", "--drain-ms", "20000")

    def start(self, *flags, **options):
        proxy = super().start(*flags, **options)
        self.pids = [proxy.process.pid]
        return proxy

    def serving(self):
        return sum("proxy listening on" in line for line in self.proxy.out)

    def restart(self):
        """Asks for a successor and waits until it serves; its pid."""
        count = self.serving()
        os.kill(self.pids[-1], signal.SIGUSR2)
        wait_for(lambda: self.serving() > count, "a successor")
        found = wait_for(lambda: [int(json.loads(line)["pid"]) for line in self.proxy.log
                                  if "a successor serves" in line][len(self.pids) - 1:], "its pid")
        self.pids.append(found[0])
        return found[0]

    def finish(self):
        if is_alive(self.pids[-1]):
            wait_for(lambda: self.proxy.metric("proxy_active_exchanges") == 0, "the end of all exchanges")
            os.kill(self.pids[-1], signal.SIGTERM)
        for server in self.servers:
            server.stop()
        code = self.proxy.process.wait(PATIENCE)
        for pid in self.pids:
            wait_for(lambda: not is_alive(pid), f"the end of {pid}")
        for thread in self.proxy.collectors:
            thread.join(PATIENCE)
        for stream in (self.proxy.process.stdout, self.proxy.process.stderr):
            stream.close()
        self.assertEqual(code, 0, "\n".join(self.proxy.log))
        for server in self.servers:
            for error in server.errors:
                raise error
        self.assertEqual([line for line in self.proxy.log if "Sanitizer" in line or "runtime error" in line], [])
