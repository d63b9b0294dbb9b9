#!/usr/bin/env python3
"""The admin API: sandboxes, the change feed, who may use it."""
import json
import os
import socket
import subprocess
import tempfile
import unittest

from support import PATIENCE, Connection, Test, main, program


class Program(unittest.TestCase):
    """Flags and start-up."""

    def run_program(self, *flags):
        done = subprocess.run([program(), *flags], capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode, done.stdout, done.stderr

    def test_flags_that_make_no_sense(self):
        for flags in (("--listen", "localhost:80"), ("--listen", "none"), ("--listen", "127.0.0.1"), ("--admin", "x"), ("--workers", "65"),
                      ("--workers", "-1"), ("--drain-ms", "-1"), ("--default-sandbox", "A_B"), ("--nosuch",), ("extra",)):
            code, out, err = self.run_program(*flags)
            self.assertEqual((code, out), (2, ""), flags)
            self.assertTrue(err, flags)
        for flags in (("--sandbox", "abc"), ("--sandbox", "a=1.2.3.4,colour=red"), ("--sandbox", "A=1.2.3.4"), ("--sandbox", "a="),
                      ("--admin-token-file", "/nonexistent"), ("--access-log", "/nonexistent/x")):
            code, out, err = self.run_program("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *flags)
            self.assertEqual((code, out), (1, ""), flags)
            self.assertRegex(err, r"^proxy: .+")
        code, _, err = self.run_program("-help")
        self.assertEqual(code, 0)
        self.assertIn("-default-sandbox", err)

    def test_it_says_which_one_it_is(self):
        for flag in ("-version", "--version"):
            for more in ((), ("--admin", "0.0.0.0:0")):
                code, out, err = self.run_program(flag, *more)
                self.assertEqual((code, err), (0, ""))
                self.assertRegex(out, r"^proxy \d+\.\d+\.\d+\ncommit (\w{12}|unknown)\nprofile \w+\n$")

    def test_case_188_an_admin_api_for_everybody_needs_a_token_or_a_word(self):
        for address in ("0.0.0.0:0", ":0", "[::]:0", "10.0.0.1:0", "[fd00::1]:0", "[::ffff:10.0.0.1]:0", "[::ffff:0.0.0.0]:0", "169.254.0.21:0"):
            code, out, err = self.run_program("--listen", "127.0.0.1:0", "--admin", address)
            self.assertEqual((code, out), (2, ""), address)
            for word in (address, "-admin-token-file", "-admin-open", "127.0.0.1", "unix:"):
                self.assertIn(word, err)
        for name in ("localhost:0", "example.test:0"):  # addresses alone, so that no name is looked up for this
            self.assertEqual(self.run_program("--listen", "127.0.0.1:0", "--admin", name)[0], 2)
        with tempfile.TemporaryDirectory() as folder:
            token, empty = os.path.join(folder, "token"), os.path.join(folder, "empty")
            for path, text in ((token, "let-me-in\n"), (empty, "\n")):
                with open(path, "w", encoding="ascii") as file:
                    file.write(text)
            code, out, err = self.run_program("--listen", "127.0.0.1:0", "--admin", "0.0.0.0:0", "--admin-token-file", empty)
            self.assertEqual((code, out), (1, ""))
            self.assertIn("must hold one token", err)
            for flags in (("0.0.0.0:0", "--admin-token-file", token), ("0.0.0.0:0", "--admin-open"), ("[::]:0", "--admin-open"), ("127.0.0.1:0",),
                          ("127.8.8.8:0",), ("[::1]:0",), ("[::ffff:127.0.0.1]:0",), (f"unix:{folder}/socket",), ("none",)):
                process = subprocess.Popen([program(), "--listen", "127.0.0.1:0", "--admin", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.addCleanup(process.kill)
                self.assertIn(b"proxy listening on", process.stdout.readline(), flags)
                process.terminate()
                process.communicate(timeout=PATIENCE)
                self.assertEqual(process.returncode, 0)

    def test_a_port_that_is_taken(self):
        with socket.socket() as keeper:
            keeper.bind(("127.0.0.1", 0))
            keeper.listen()
            port = keeper.getsockname()[1]
            for flags in (("--listen", f"127.0.0.1:{port}", "--admin", "none"), ("--listen", "127.0.0.1:0", "--admin", f"127.0.0.1:{port}")):
                code, out, err = self.run_program(*flags)
                self.assertEqual((code, out), (1, ""))
                self.assertIn("address already in use", err)


class NoStandardFiles(Test):
    prefix = ("sh", "-c", 'exec 3<&0 <&- 4>&2 2>&-; exec "$0" "$@" 3<&- 4>&-')

    def test_started_without_input_and_error_output(self):
        """What is opened first must not get their numbers: the log would be written into it."""
        server = self.serve()
        proxy = self.start()
        for descriptor in (0, 2):
            self.assertEqual(os.readlink(f"/proc/{proxy.process.pid}/fd/{descriptor}"), "/dev/null")
        self.assertEqual(proxy.ask(self.host(server)).status, 200)


class Admin(Test):
    def follow(self, query="watch=1"):
        client = Connection(socket.create_connection(("127.0.0.1", self.proxy.admin_port)))
        self.addCleanup(client.close)
        client.send(f"GET /sandboxes?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.head_line, client.head_fields = client.head()
        return client

    @staticmethod
    def event(client):
        while True:
            line = client.take_until(b"\n")
            if line.startswith(b"{"):
                return json.loads(line)
            if not line:
                return None

    def test_add_change_remove(self):
        proxy = self.start("--allow-loopback-upstreams", sandboxes=())
        self.assertEqual(proxy.call("GET", "/sandboxes"), (200, {"revision": 0, "sandboxes": []}))
        status, made = proxy.call("PUT", "/sandboxes/abc", {
            "address": "10.0.0.5", "envd_port": 5000, "lifecycle_id": "run-1", "traffic_access_token": "t0p",
            "mask_request_host": "localhost:${PORT}", "connection_limit": 7})
        self.assertEqual(status, 201)
        self.assertEqual(made, {"id": "abc", "state": "running", "address": "10.0.0.5", "envd_port": 5000, "lifecycle_id": "run-1",
                                "private": True, "mask_request_host": "localhost:${PORT}", "connection_limit": 7,
                                "auto_resume": "off", "envd_secure": False, "active": 0,
                                "revision": 1})
        self.assertEqual(proxy.call("GET", "/sandboxes/abc"), (200, made))
        status, changed = proxy.call("PATCH", "/sandboxes/abc", {"state": "pausing", "traffic_access_token": None})
        self.assertEqual((status, changed["state"], changed["private"], changed["lifecycle_id"]), (200, "pausing", False, "run-1"))
        status, changed = proxy.call("PATCH", "/sandboxes/abc", {"auto_resume": "any", "envd_access_token_sha256": "0f" * 32})
        self.assertEqual((status, changed["auto_resume"], changed["envd_secure"]), (200, "any", True))
        self.assertNotIn("0f0f", json.dumps(changed))
        status, replaced = proxy.call("PUT", "/sandboxes/abc", {"address": "10.0.0.6"})
        self.assertEqual((status, replaced["envd_port"], replaced["connection_limit"]), (200, 49983, -1))
        self.assertNotEqual(replaced["lifecycle_id"], "run-1")
        self.assertEqual(proxy.call("GET", "/sandboxes")[1]["sandboxes"], [replaced])
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc"), (204, ""))
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc")[0], 404)
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[0], 404)
        self.assertEqual(proxy.call("PATCH", "/sandboxes/abc", {})[0], 404)
        self.assertEqual(proxy.call("GET", "/catalog"), (200, {"complete": True, "count": 0, "revision": 5}))

    def test_changes_bound_to_a_lifecycle(self):
        proxy = self.start(sandboxes=())
        proxy.call("PUT", "/sandboxes/abc", {"address": "10.0.0.5", "lifecycle_id": "two"})
        for method, body in (("PUT", {"address": "10.0.0.6"}), ("PATCH", {"state": "paused"}), ("DELETE", None)):
            self.assertEqual(proxy.call(method, "/sandboxes/abc?lifecycle_id=one", body)[0], 409)
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["revision"], 1)
        self.assertEqual(proxy.call("PATCH", "/sandboxes/abc?lifecycle_id=two", {"state": "paused"})[0], 200)
        self.assertEqual(proxy.call("DELETE", "/sandboxes/abc?lifecycle_id=two")[0], 204)

    def test_what_is_refused(self):
        proxy = self.start(sandboxes=())
        for path in ("/sandboxes/", "/sandboxes/A", "/sandboxes/a-b", "/sandboxes/a/b", "/sandboxes/" + "a" * 64, "/sandboxes/%61"):
            self.assertEqual(proxy.call("PUT", path, {"address": "10.0.0.1"})[0], 400, path)
        for body in ({}, {"address": ""}, {"address": 5}, {"address": "10.0.0.1:80"}, {"address": "http://10.0.0.1"}, [], "x", 5, None,
                     {"address": "10.0.0.1", "adress": "x"}, {"address": "10.0.0.1", "state": "asleep"},
                     {"address": "10.0.0.1", "envd_port": 0}, {"address": "10.0.0.1", "envd_port": 65536},
                     {"address": "10.0.0.1", "envd_port": "80"}, {"address": "10.0.0.1", "connection_limit": -2},
                     {"address": "10.0.0.1", "connection_limit": 1.5}, {"address": "10.0.0.1", "mask_request_host": "a\r\nb"},
                     {"address": "10.0.0.1", "auto_resume": True}, {"address": "10.0.0.1", "auto_resume": "yes"},
                     {"address": "10.0.0.1", "envd_access_token_sha256": "0F" * 32}, {"address": "10.0.0.1", "envd_access_token_sha256": "0f"},
                     {"address": "10.0.0.1", "traffic_access_token": "a" * 300}, {"address": "127.0.0.1"}, {"address": "169.254.169.254"}):
            status, answer = proxy.call("PUT", "/sandboxes/abc", body)
            self.assertEqual(status, 400, body)
            self.assertEqual(answer["code"], 400)
        # Many small parts take much more memory than their text does.
        for body in ({f"k{i}": 1 for i in range(5000)}, {"address": [[]] * 15000}, {"address": list(range(8000))}):
            self.assertEqual(proxy.call("PUT", "/sandboxes/abc", body)[0], 400)
        self.assertEqual(proxy.call("PUT", "/sandboxes/abc", {"address": "a" * 70000})[0], 413)
        for method, path, status in (("POST", "/sandboxes/abc", 405), ("DELETE", "/sandboxes", 405), ("GET", "/nothing", 404),
                                     ("POST", "/catalog", 405), ("GET", "/sandboxes?watch=1&revision=x", 400)):
            self.assertEqual(proxy.call(method, path)[0], status, path)
        for method, path, allowed in (("POST", "/sandboxes/abc", "GET, HEAD, PUT, PATCH, DELETE"), ("GET", "/sandboxes/abc/links", "POST"),
                                      ("DELETE", "/sandboxes", "GET"), ("POST", "/catalog", "GET, PUT"), ("PUT", "/activity", "GET")):
            client = Connection(socket.create_connection(("127.0.0.1", proxy.admin_port)))
            self.addCleanup(client.close)
            client.send(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            response = client.response()
            self.assertEqual((response.status, response.get("Allow")), (405, allowed), path)
        for body in ({}, {"complete": 1}, {"complete": True, "x": 1}, []):
            self.assertEqual(proxy.call("PUT", "/catalog", body)[0], 400)
        self.assertEqual(proxy.call("GET", "/catalog")[1]["count"], 0)

    def test_watch(self):
        proxy = self.start()
        client = self.follow()
        self.assertEqual(client.head_line, "HTTP/1.1 200 OK")
        first = self.event(client)
        self.assertEqual((first["type"], first["sandbox"]["id"]), ("put", "abc"))
        self.assertEqual(self.event(client), {"type": "synced", "revision": 1})
        proxy.call("PUT", "/sandboxes/new", {"address": "10.0.0.7"})
        event = self.event(client)
        self.assertEqual((event["type"], event["revision"], event["sandbox"]["address"]), ("put", 2, "10.0.0.7"))
        proxy.call("PATCH", "/sandboxes/new", {"state": "paused"})
        self.assertEqual(self.event(client)["sandbox"]["state"], "paused")
        proxy.call("DELETE", "/sandboxes/new")
        event = self.event(client)
        self.assertEqual((event["type"], event["id"], event["revision"]), ("removed", "new", 4))
        # Another one goes on from where it was.
        again = self.follow("watch=1&revision=2")
        self.assertEqual(self.event(again), {"type": "synced", "revision": 2})
        self.assertEqual([self.event(again)["revision"] for _ in range(2)], [3, 4])
        again.close()
        self.assertEqual(self.follow("watch=1&revision=99").head_line, "HTTP/1.1 410 Gone")

    def test_watch_ends_in_order_with_the_proxy(self):
        proxy = self.start()
        client = self.follow()
        self.event(client)
        self.event(client)
        self.assertEqual(proxy.stop(), 0)
        self.assertTrue(client.take_all().endswith(b"0\r\n\r\n"))

    def test_a_watcher_that_does_not_read_is_bounded(self):
        proxy = self.start(sandboxes=())
        client = self.follow()
        self.assertEqual(self.event(client), {"type": "synced", "revision": 0})
        before = proxy.memory_kib()
        connection = Connection(socket.create_connection(("127.0.0.1", proxy.admin_port)))
        body = json.dumps({"address": "10.0.0.9", "mask_request_host": "m" * 250, "lifecycle_id": "l" * 200})
        request = f"PUT /sandboxes/abc HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        for _ in range(150):
            connection.send(request * 100)
            for _ in range(100):
                self.assertIn(connection.response().status, (200, 201))
            connection.received = b""
        connection.close()
        self.assertLess(proxy.memory_kib() - before, 16 * 1024)
        last = None
        while True:
            event = self.event(client)
            if event is None or event["type"] == "lost":
                break
            client.received = b""
            last = event["revision"]
            if last == 15000:
                break
        # Either it was told that it lost some, or it got every one; never a silent gap.
        self.assertTrue(last == 15000 or event == {"type": "lost"}, (last, event))

    def test_many_sandboxes_are_listed_whole(self):
        proxy = self.start(sandboxes=())
        connection = Connection(socket.create_connection(("127.0.0.1", proxy.admin_port)))
        for start in range(0, 3000, 100):
            for number in range(start, start + 100):
                connection.send(f"PUT /sandboxes/s{number} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 22\r\n\r\n"
                                '{"address":"10.0.0.9"}')
            for _ in range(100):
                self.assertEqual(connection.response().status, 201)
        connection.close()
        listed = proxy.call("GET", "/sandboxes")[1]
        self.assertEqual(listed["revision"], 3000)
        self.assertEqual({sandbox["id"] for sandbox in listed["sandboxes"]}, {f"s{number}" for number in range(3000)})
        client = self.follow()
        ids = set()
        while True:
            event = self.event(client)
            if event["type"] == "synced":
                break
            ids.add(event["sandbox"]["id"])
        self.assertEqual(len(ids), 3000)

    def test_pages_and_foreign_names_are_refused(self):
        proxy = self.start()
        for fields in ({"Origin": "http://evil.test"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.test"},
                       {"Host": "1-abc.test"}, {"Host": "sandbox.evil.test"}):
            self.assertEqual(proxy.call("GET", "/sandboxes", fields=fields)[0], 403, fields)
        for host in ("localhost", f"127.0.0.1:{proxy.admin_port}", "[::1]:80"):
            self.assertEqual(proxy.call("GET", "/sandboxes", fields={"Host": host})[0], 200)

    def test_token(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            with open(path, "w", encoding="ascii") as file:
                file.write("let-me-in\n")
            proxy = self.start("--admin-token-file", path)
        for value, status in ((None, 401), ("Bearer wrong", 401), ("Bearer let-me-i", 401), ("Basic let-me-in", 401), ("Bearer let-me-in", 200),
                              ("bearer  let-me-in", 200)):
            fields = {"Authorization": value} if value else {}
            self.assertEqual(proxy.call("GET", "/sandboxes/abc", fields=fields)[0], status, value)
            self.assertEqual(proxy.call("PUT", "/sandboxes/new", {"address": "10.0.0.1"}, fields)[0] in (200, 201), status == 200)
        self.assertEqual(proxy.call("GET", "/health")[0], 200)
        proxy.metric = lambda name, **labels: 0  # the closing check has no token
        self.assertFalse(any("let-me-in" in line for line in proxy.log))


if __name__ == "__main__":
    main()
