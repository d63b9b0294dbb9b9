#!/usr/bin/env python3
"""Restart without a gap (SIGUSR2), the admin API on a socket in the file system, other users, service managers."""
import json
import os
import pwd
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
import threading
import unittest

from dns_support import NameServer
from handover_support import Following, is_alive, resume
from http2_support import Client
from redis_support import Redis
from support import OVER_TLS, PATIENCE, Connection, main, program, wait_for
from tls_support import anyone
from tunnel_support import ASK, held


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(child) for child in file.read().split()]


class Handover(Following):
    def test_no_request_is_lost_while_proxies_follow_each_other(self):
        server = self.serve()
        proxy = self.start()
        host = self.host(server)
        stop, failures, counts = threading.Event(), [], [0] * 6

        def ask(index):
            client = None
            while not stop.is_set():
                try:
                    if not client:
                        client = proxy.connect()
                    client.send(f"GET /{counts[index]} HTTP/1.1\r\nHost: {host}\r\n\r\n")
                    response = client.response()
                    if response is None or response.status != 200:
                        failures.append(response and (response.status, response.body))
                    counts[index] += 1
                    # Half of them come anew each time, the others when they are told to.
                    if index % 2 or response is None or (response.get("Connection") or "").lower() == "close":
                        client.close()
                        client = None
                except Exception as error:  # pylint: disable=broad-except
                    failures.append(repr(error))
                    client = None
            if client:
                client.close()

        threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(counts))]
        self.addCleanup(stop.set)
        for thread in threads:
            thread.start()
        for _ in range(4):
            before = sum(counts)
            self.restart()
            wait_for(lambda: sum(counts) > before + 50, "more requests")
        wait_for(lambda: min(counts) > 10, "some of each")
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures[:3], [])

    def test_s084_s094_http2_clients_lose_nothing_either(self):
        """Some (python-h2, undici) give up what they have asked when a notice of the end crosses it."""
        server = self.serve()
        proxy = self.start()
        host = self.host(server)
        stop, failures, counts, anew = threading.Event(), [], [0] * 4, [0] * 4

        def ask(index):
            client = None
            while not stop.is_set():
                try:
                    if not client:
                        client = Client(proxy)
                        anew[index] += 1
                    got = client.ask(host, f"/{counts[index]}")
                    if got.status != 200 or not got.ended:
                        failures.append((got.status, got.reset))
                    counts[index] += 1
                    if client.goaways:
                        client.close()
                        client = None
                except Exception as error:  # pylint: disable=broad-except
                    failures.append(repr(error))
                    client = None
            if client:
                client.close()

        threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(counts))]
        self.addCleanup(stop.set)
        for thread in threads:
            thread.start()
        for number in range(1, 4):
            wait_for(lambda: min(counts) > 0, "a request on each connection")
            before = sum(counts)
            self.restart()
            wait_for(lambda: sum(counts) > before + 50 and min(anew) > number, "more requests, by new connections")
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(failures[:3], [])

    def begin(self, server, path, sandbox="abc"):
        client = self.proxy.connect()
        self.addCleanup(client.close)
        fields = ASK if path == "/tunnel" else ""
        client.send(f"GET {path} HTTP/1.1\r\nHost: {self.host(server, sandbox)}\r\n{fields}\r\n")
        client.head()
        client.take(1)
        return client

    def test_what_runs_is_finished_by_the_old_one_which_then_ends(self):
        gate = threading.Event()

        def script(connection):
            path = connection.request().line.split()[1]
            if path == "/tunnel":
                connection.send(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
                connection.send(connection.take(5))
                return
            connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf")
            gate.wait(PATIENCE)
            connection.send(b"rest")

        server = self.serve(script)
        proxy = self.start()
        download, tunnel = proxy.connect(), proxy.connect()
        download.send(f"GET / HTTP/1.1\r\nHost: {self.host(server)}\r\n\r\n")
        download.head()
        self.assertEqual(download.take(4), b"half")
        tunnel.send(f"GET /tunnel HTTP/1.1\r\nHost: {self.host(server)}\r\n{ASK}\r\n")
        tunnel.head()
        self.restart()
        self.assertTrue(is_alive(self.pids[0]))
        self.assertEqual(proxy.call("GET", "/health")[0], 200, "the successor is not draining")
        gate.set()
        self.assertEqual(download.take(4), b"rest")
        tunnel.send("hello")
        self.assertEqual(tunnel.take(5), b"hello")
        self.assertEqual(tunnel.take_all(), b"")
        self.assertFalse(tunnel.reset)
        tunnel.close()
        download.close()
        wait_for(lambda: not is_alive(self.pids[0]) or proxy.process.poll() is not None, "the old one's end")

    def test_the_catalog_goes_with_it_secrets_and_lifecycles_included(self):
        server = self.serve()
        proxy = self.start("--catalog-incomplete")
        for name, body in (("plain", {}), ("private", {"traffic_access_token": 'geheim-1'}),
                           ("limited", {"connection_limit": 0}), ("asleep", {"state": "paused", "auto_resume": "any"})):
            self.assertEqual(proxy.call("PUT", f"/sandboxes/{name}", {"address": "127.0.0.1", **body})[0], 201)
        proxy.call("PUT", "/catalog", {"complete": True})
        known = {each["id"]: each for each in proxy.call("GET", "/sandboxes")[1]["sandboxes"]}
        revision = proxy.call("GET", "/catalog")[1]["revision"]
        self.restart()
        after = {each["id"]: each for each in proxy.call("GET", "/sandboxes")[1]["sandboxes"]}
        for each in (*known.values(), *after.values()):
            del each["revision"]
        self.assertEqual(after, known)
        self.assertEqual(proxy.ask(self.host(server, "private")).status, 403)
        self.assertEqual(proxy.ask(self.host(server, "plain")).status, 200)
        self.assertEqual(proxy.ask(self.host(server, "limited")).status, 429)
        self.assertTrue(proxy.call("GET", "/catalog")[1]["complete"])
        status = proxy.call("GET", f"/sandboxes?watch=1&revision={revision}")[0]
        self.assertEqual(status, 410, "who followed the old one's changes begins anew")

    def test_what_sources_know_is_looked_after_by_the_successor(self):
        """Found in DNS and in Redis before, moved and gone after."""
        names, redis = NameServer(), Redis()
        self.addCleanup(names.stop)
        self.addCleanup(redis.close)
        value = json.dumps({"orchestrator_ip": "127.0.0.1", "execution_id": "e1"})
        names.names["pod"] = ["127.0.0.1"]
        redis.client.pipeline([("SET", f"sandbox:catalog:{name}", value) for name in ("box", "other")])
        server, moved = self.serve(), self.serve(host="127.0.0.2")
        proxy = self.start("--redis", redis.url, "--dns-template", "{id}.test", "--dns-server", names.address)
        for name in ("pod", "box", "other"):
            self.assertEqual(proxy.ask(self.host(server, name)).status, 200)
        before = proxy.call("GET", "/sandboxes/box")[1]["lifecycle_id"]
        self.restart()
        self.assertEqual(proxy.call("GET", "/sandboxes/box")[1]["lifecycle_id"], before)
        for name in ("pod", "box"):
            self.assertEqual(proxy.ask(self.host(server, name)).status, 200)
        names.names["pod"] = ["127.0.0.2"]
        redis.client.call("DEL", "sandbox:catalog:other")
        wait_for(lambda: proxy.call("GET", "/sandboxes/pod")[1].get("address") == "127.0.0.2", "the pod's new address")
        wait_for(lambda: proxy.call("GET", "/sandboxes/other")[0] == 404, "the end of the other one")
        self.assertEqual(proxy.ask(self.host(moved, "pod")).status, 200)

    def test_a_sandbox_that_ends_is_ended_in_the_old_one_too(self):
        server = self.serve(held)
        proxy = self.start()
        proxy.call("PUT", "/sandboxes/new", {"address": "127.0.0.1"})
        gone, stays = self.begin(server, "/stream", "new"), self.begin(server, "/stream")
        self.restart()
        self.assertEqual(proxy.call("DELETE", "/sandboxes/new")[0], 204)
        gone.take_all()
        self.assertTrue(gone.reset, "a cut body must not look complete")
        stays.sock.settimeout(0.2)
        with self.assertRaises(TimeoutError):
            stays.sock.recv(1)
        self.assertTrue(is_alive(self.pids[0]))
        stays.close()

    def test_s095_the_old_one_told_to_end_goes_on_draining_and_told_twice_does_not(self):
        server = self.serve(held)
        self.start()
        tunnel, stream = self.begin(server, "/tunnel"), self.begin(server, "/stream")
        old = self.pids[0]
        self.restart()
        os.kill(old, signal.SIGTERM)
        self.proxy.logged("going on with that")
        for client in (tunnel, stream):
            client.sock.settimeout(0.2)
            with self.assertRaises(TimeoutError):
                client.sock.recv(1)
            client.sock.settimeout(PATIENCE)
        os.kill(old, signal.SIGTERM)
        for client in (tunnel, stream):
            client.take_all()
            self.assertTrue(client.reset)
        self.assertEqual(self.proxy.process.wait(PATIENCE), 0)
        self.assertTrue(is_alive(self.pids[1]))

    def test_changes_made_during_a_handover_are_in_the_successor(self):
        proxy = self.start()
        stop, made, failures = threading.Event(), [], []

        def change():
            while not stop.is_set():
                name = f"n{len(made)}"
                try:
                    status, body = proxy.call("PUT", f"/sandboxes/{name}", {"address": "10.0.0.1"})
                except Exception as error:  # pylint: disable=broad-except
                    status, body = 0, repr(error)
                if status != 201:
                    failures.append((name, status, body))
                made.append(name)

        thread = threading.Thread(target=change)
        thread.start()
        for _ in range(4):
            before = len(made)
            self.restart()
            wait_for(lambda: len(made) > before + 20, "more changes")
        stop.set()
        thread.join(PATIENCE)
        self.assertEqual(failures[:3], [])
        wait_for(lambda: {each["id"] for each in proxy.call("GET", "/sandboxes")[1]["sandboxes"]} >= set(made), "all of them")

    def test_many_sandboxes_go_over(self):
        server = self.serve()
        proxy = self.start()
        connection = Connection(socket.create_connection(("127.0.0.1", proxy.admin_port)))
        body = json.dumps({"address": "127.0.0.1", "mask_request_host": "x" * 200})
        for first in range(0, 5000, 100):
            connection.send("".join(f"PUT /sandboxes/s{first + i} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                                    for i in range(100)))
            for _ in range(100):
                self.assertEqual(connection.response().status, 201)
        connection.close()
        self.restart()
        self.assertEqual(proxy.call("GET", "/catalog")[1]["count"], 5001)
        self.assertEqual(proxy.ask(self.host(server, "s4999")).status, 200)

    def test_case_189_masks_of_single_ports_go_over(self):
        one, two = self.serve(), self.serve()
        masks = f"{one.port}=localhost:${{PORT}};any.test"
        proxy = self.start("--sandbox", f"given=127.0.0.1,mask={masks}")
        self.assertEqual(proxy.call("PUT", "/sandboxes/made", {"address": "127.0.0.1", "mask_request_host": masks})[0], 201)
        self.restart()
        for name in ("given", "made"):
            self.assertEqual(proxy.call("GET", f"/sandboxes/{name}")[1]["mask_request_host"], masks)
            for server, expected in ((one, f"localhost:{one.port}"), (two, "any.test")):
                self.assertEqual(dict(proxy.ask(self.host(server, name)).json()["fields"])["Host"], expected)

    def test_a_successor_that_cannot_start_changes_nothing(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        token = os.path.join(folder, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write("secret\n")
        server = self.serve()
        proxy = self.start("--admin-token-file", token)
        bearer = {"Authorization": "Bearer secret"}
        os.unlink(token)
        os.kill(proxy.process.pid, signal.SIGUSR2)
        proxy.logged("no successor, going on")
        wait_for(lambda: children(proxy.process.pid) == [], "its remains to be taken away")
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        with open(token, "w", encoding="ascii") as file:
            file.write("secret\n")
        self.restart()
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        self.assertEqual(proxy.call("GET", "/sandboxes", fields=bearer)[0], 200)
        call = proxy.call
        proxy.call = lambda method, path, body=None, fields=None: call(method, path, body, fields or bearer)

    def test_who_is_told_to_end_while_a_successor_starts_leaves_none_behind(self):
        proxy = self.start("--drain-delay-ms", "2000")
        # Both signals at once: the first to be seen is the one that starts a successor.
        for number in (signal.SIGSTOP, signal.SIGUSR2, signal.SIGTERM, signal.SIGCONT):
            os.kill(proxy.process.pid, number)
        proxy.logged("draining")
        found = children(proxy.process.pid)
        self.addCleanup(lambda: [os.kill(pid, signal.SIGKILL) for pid in found if is_alive(pid)])
        self.assertEqual(proxy.process.wait(PATIENCE), 0)
        proxy.logged("starting a successor")
        self.assertEqual([pid for pid in found if is_alive(pid)], [])

    def test_a_private_variable_of_another_program_is_refused(self):
        result = subprocess.run([program(), "--listen", "127.0.0.1:0", "--admin", "none"], capture_output=True, text=True,
                                env={**os.environ, "PROXY_HANDOVER_FD": "777"}, timeout=PATIENCE, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("PROXY_HANDOVER_FD", result.stderr)

    def test_the_service_manager_hears_who_serves(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind(os.path.join(folder, "notify"))
        manager.settimeout(PATIENCE)
        self.start(env={"NOTIFY_SOCKET": os.path.join(folder, "notify")})
        self.assertEqual(manager.recv(100), b"READY=1")
        pid = self.restart()
        self.assertEqual(manager.recv(100), b"MAINPID=%d" % pid)
        os.kill(pid, signal.SIGTERM)
        self.assertEqual(manager.recv(100), b"STOPPING=1")
        wait_for(lambda: not is_alive(pid), "its end")

    @unittest.skipIf(OVER_TLS, "the key is root's alone")
    @unittest.skipIf(os.getuid() != 0, "only root can become somebody else")
    def test_it_runs_as_somebody_else_once_its_sockets_are_open(self):
        nobody = pwd.getpwnam("nobody")
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o755)
        log = os.path.join(folder, "access")
        server = self.serve()
        proxy = self.start("--user", "nobody", "--access-log", log)

        def identity(pid):
            with open(f"/proc/{pid}/status", encoding="ascii") as file:
                text = file.read()
            return {name: re.search(rf"^{name}:\s*(.*)$", text, re.M).group(1).split() for name in ("Uid", "Gid", "CapEff")}

        for pid in (proxy.process.pid, self.restart()):
            found = identity(pid)
            self.assertEqual(found["Uid"], [str(nobody.pw_uid)] * 4)
            self.assertEqual(found["Gid"], [str(nobody.pw_gid)] * 4)
            self.assertEqual(int(found["CapEff"][0], 16), 0)
            self.assertEqual(proxy.ask(self.host(server), f"/by-{pid}").status, 200)

        def text():
            with open(log, encoding="utf-8") as file:
                return file.read()

        wait_for(lambda: f"/by-{self.pids[1]}" in text(), "the successor's line in the log")


class Tickets(Following):
    def test_s090_tls_sessions_are_resumed_by_successors(self):
        self.start(over_tls=True)
        contexts = [anyone(maximum_version=version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
        sessions = [resume(self.proxy, context).session for context in contexts]
        for _ in range(2):
            pid = self.pids[-1]
            self.restart()
            wait_for(lambda: not is_alive(pid), "the old one's end")
            before = self.proxy.metric("proxy_tls_resumed_total")
            for context, session in zip(contexts, sessions):
                for _ in range(6):  # at each worker
                    self.assertTrue(resume(self.proxy, context, session).session_reused)
            self.assertEqual(self.proxy.metric("proxy_tls_resumed_total") - before, 12)
        self.assertEqual([line for line in self.proxy.log if "tickets" in line], [])


class AdminSocket(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "admin")

    def launch(self):
        process = subprocess.Popen([program(), "--listen", "127.0.0.1:0", "--admin", f"unix:{self.path}"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait, PATIENCE)
        self.addCleanup(process.kill)
        return process

    def ask(self, path):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(self.path)
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            data = b""
            while piece := sock.recv(65536):
                data += piece
            return data

    def test_the_admin_api_listens_on_a_path(self):
        process = self.launch()
        self.assertRegex(process.stdout.readline(), f"admin on unix:{self.path}$")
        mode = os.stat(self.path).st_mode
        self.assertTrue(stat.S_ISSOCK(mode))
        self.assertEqual(stat.S_IMODE(mode), 0o660)
        self.assertIn(b"healthy", self.ask("/health"))
        self.assertIn(b'"sandboxes":[', self.ask("/sandboxes"))
        second = self.launch()
        self.assertEqual(second.wait(PATIENCE), 1, "somebody listens there")
        self.assertIn("in use", second.stderr.read())
        # A successor inherits it, and both live on the same path.
        process.send_signal(signal.SIGUSR2)
        line = process.stdout.readline()
        self.assertRegex(line, f"admin on unix:{self.path}$")
        process.wait(PATIENCE)
        self.assertIn(b"healthy", self.ask("/health"))
        successor = self.successor(process)
        os.kill(successor, signal.SIGKILL)
        wait_for(lambda: not is_alive(successor), "its end")
        third = self.launch()
        self.assertRegex(third.stdout.readline(), "admin on unix:", "what a dead one left behind is replaced")
        self.assertIn(b"healthy", self.ask("/health"))

    @staticmethod
    def successor(process):
        for line in iter(process.stderr.readline, ""):
            if "a successor serves" in line:
                return int(json.loads(line)["pid"])
        raise AssertionError("no successor")

    def test_other_files_are_left_alone(self):
        with open(self.path, "w", encoding="ascii") as file:
            file.write("precious")
        process = self.launch()
        self.assertEqual(process.wait(PATIENCE), 1)
        with open(self.path, encoding="ascii") as file:
            self.assertEqual(file.read(), "precious")


if __name__ == "__main__":
    main()
