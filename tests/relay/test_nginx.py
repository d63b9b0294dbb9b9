#!/usr/bin/env python3
"""Behind nginx, as it is configured by default: what comes piece by piece arrives piece by piece."""
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

from support import OVER_TLS, PATIENCE, Connection, Test, main, wait_for

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"


@unittest.skipIf(OVER_TLS, "nginx comes without TLS")
@unittest.skipUnless(os.path.exists(NGINX), "there is no nginx (nginx-light)")
class BehindNginx(Test):
    def front(self):
        """nginx in front of the proxy, with proxy_buffering on; its port."""
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        path = os.path.join(folder, "socket")  # no port that somebody else could take meanwhile
        places = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        config = os.path.join(folder, "nginx.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(f"""daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/errors;
                {"user root;" if os.getuid() == 0 else ""} events {{ worker_connections 64; }}
                http {{ access_log off; {places} server {{ listen unix:{path};
                    location / {{ proxy_pass http://127.0.0.1:{self.proxy.port}; proxy_buffering on;
                                  proxy_set_header Host $host; }} }} }}""")
        process = subprocess.Popen([NGINX, "-p", folder, "-c", config], stderr=subprocess.DEVNULL)

        def end():
            process.terminate()
            process.wait(PATIENCE)

        self.addCleanup(end)
        wait_for(lambda: os.path.exists(path) or process.poll() is not None, "nginx")
        self.assertIsNone(process.poll(), "nginx has ended")
        return path

    def ask(self, path, server):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        wait_for(lambda: sock.connect_ex(path) == 0, "nginx listening")
        client = Connection.__new__(Connection)
        client.sock, client.received, client.buffer, client.reset, client.eof = sock, b"", b"", False, False
        self.addCleanup(client.close)
        client.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        return client

    def events_come_as_they_are_sent(self, kind):
        """Each is sent once the one before it has arrived: where they are collected the second never comes."""
        arrived = threading.Semaphore(0)

        def script(connection):
            connection.request()
            connection.send(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n")
            for number in range(5):
                piece = f"data: {number}\n\n"
                connection.send(f"{len(piece):x}\r\n{piece}\r\n")
                if not arrived.acquire(timeout=PATIENCE):
                    return
            connection.send("0\r\n\r\n")

        server = self.serve(script)
        self.start()
        client = self.ask(self.front(), server)
        line, fields = client.head()
        self.assertIn(" 200 ", line)
        for number in range(5):
            event = f"data: {number}\n\n".encode()
            self.assertTrue(client.take_until(event).endswith(event), f"event {number} of {kind}")
            arrived.release()
        self.assertNotIn("x-accel-buffering", [name.lower() for name, _ in fields], "nginx keeps it for itself")

    def test_case_179_events(self):
        self.events_come_as_they_are_sent("text/event-stream")

    def test_case_179_messages_of_connect(self):
        self.events_come_as_they_are_sent("application/connect+json")

    def test_case_179_lines(self):
        self.events_come_as_they_are_sent("application/x-ndjson")

    def test_case_179_what_is_no_stream_of_events_is_left_to_nginx(self):
        """So that this test can tell: nginx does collect what nobody has asked it to pass on."""
        gate = threading.Event()

        def script(connection):
            connection.request()
            connection.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
            sent.set()
            gate.wait(PATIENCE)
            connection.send("6\r\nsecond\r\n0\r\n\r\n")

        sent = threading.Event()
        server = self.serve(script)
        self.start()
        client = self.ask(self.front(), server)
        self.assertTrue(sent.wait(PATIENCE))
        client.sock.settimeout(0.5)  # a collected piece comes when the next one does, or never
        with self.assertRaises(TimeoutError):
            client.take_until(b"first")
        client.sock.settimeout(PATIENCE)
        gate.set()
        client.head()
        self.assertIn(b"second", client.take_until(b"second"))


if __name__ == "__main__":
    main()
