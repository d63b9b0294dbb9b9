#!/usr/bin/env python3
"""Hosts that are not sandboxes': an exact name leads to a server of its own, and everything else goes its usual way."""
import json
import subprocess

from http2_support import Client
from support import PATIENCE, Test, closed_port, main, program, wait_for
from tunnel_support import ASK, SWITCH, upgrade

NAME = "api.sandbox.test"


class Hosts(Test):
    def start_with(self, server, *flags, name=NAME):
        return self.start("--host", f"{name}=http://127.0.0.1:{server.port}", "--access-log", "-", *flags)

    def entry(self, path):
        found = []

        def look():
            found[:] = [line for line in map(json.loads, (t for t in self.proxy.out if t.startswith("{"))) if line["path"] == path]
            return found

        wait_for(look, f"the line of {path}")
        return found[0]

    def test_a_request_goes_to_the_server_of_its_host(self):
        server = self.serve()
        proxy = self.start_with(server)
        for authority in (NAME, NAME.upper(), NAME + ".", NAME + ":1234", "Api.Sandbox.TEST.:80", NAME + ":"):
            got = proxy.ask(authority, "/v1/sandboxes?a=b", "POST", "X-API-Key: k\r\n", "body")
            self.assertEqual(got.status, 200, authority)
            seen = got.json()
            fields = {name.lower(): value for name, value in seen["fields"]}
            self.assertEqual((seen["line"], seen["body"], fields["host"], fields["x-api-key"]),
                             ("POST /v1/sandboxes?a=b HTTP/1.1", "body", authority, "k"))
        self.assertEqual(proxy.metric("proxy_host_requests_total", host=NAME), 6)
        self.assertEqual(proxy.metric("proxy_host_errors_total", host=NAME), 0)
        line = self.entry("/v1/sandboxes")
        self.assertEqual((line["handler"], line["upstream"], line["status"]), (NAME, f"127.0.0.1:{server.port}", 200))
        self.assertNotIn("sandbox", line)
        self.assertNotIn("port", line)

    def test_what_only_envd_must_not_be_asked_passes(self):
        """A server that is no sandbox has no internal paths, and no port that is envd's."""
        server = self.serve()
        proxy = self.start_with(server)
        self.assertEqual(proxy.ask(NAME, "/init", "POST", body="{}").status, 200)

    def test_routing_fields_lead_nowhere_else(self):
        """An exact name is not shared, even where it looks like a host that is."""
        api, sandbox = self.serve(), self.serve()
        names = (NAME, "sandbox.test.example", f"{sandbox.port}-abc.example")
        proxy = self.start(*(flag for name in names for flag in ("--host", f"{name}=http://127.0.0.1:{api.port}")))
        for name in names:
            got = proxy.ask(name, fields=f"E2b-Sandbox-Id: abc\r\nE2b-Sandbox-Port: {sandbox.port}\r\n")
            self.assertEqual(got.status, 200)
            self.assertNotIn("E2b-Sandbox-Id", dict(got.json()["fields"]))
        self.assertEqual((len(api.connections), len(sandbox.connections)), (3, 0))

    def test_every_other_host_goes_its_usual_way(self):
        api, sandbox = self.serve(), self.serve()
        proxy = self.start_with(api)
        self.assertEqual(proxy.ask(self.host(sandbox)).status, 200)
        for authority, cause in (("x" + NAME, "invalid_host"), ("api.sandbox", "invalid_host"),
                                 ("80-nosuch." + NAME, "sandbox_not_found"), (NAME + ":99999", "invalid_host"),
                                 (NAME + ":x", "invalid_host"), (NAME + "..", "invalid_host")):
            got = proxy.ask(authority)
            self.assertEqual(got.get("X-Proxy-Error"), cause, authority)
        self.assertEqual(len(api.connections), 0)
        self.assertEqual(proxy.metric("proxy_host_requests_total", host=NAME), 0)
        # It is in no catalog.
        self.assertEqual([s["id"] for s in proxy.call("GET", "/sandboxes")[1]["sandboxes"]], ["abc"])

    def test_http2(self):
        server = self.serve()
        with Client(self.start_with(server)) as client:
            for _ in range(3):
                got = client.ask(NAME.upper(), "/two", "POST", body=b"x" * 100000)
                self.assertEqual(got.status, 200)
                self.assertEqual(len(json.loads(got.body)["body"]), 100000)
        self.assertEqual(self.entry("/two")["protocol"], "HTTP/2")
        self.assertEqual(self.entry("/two")["handler"], NAME)

    def test_websocket(self):
        def script(connection):
            connection.request()
            connection.send(SWITCH + b"hello")
            self.assertEqual(connection.take(3), b"you")
            connection.send(b"bye")

        server = self.serve(script)
        with self.start_with(server).connect() as client:
            client.send(f"GET /ws HTTP/1.1\r\nHost: {NAME}\r\n{ASK}\r\n")
            self.assertEqual(client.response().status, 101)
            self.assertEqual(client.take(5), b"hello")
            client.send(b"you")
            self.assertEqual(client.take(3), b"bye")
        line = self.entry("/ws")
        self.assertEqual((line["handler"], line["tunnel"]), (NAME, True))

    def test_websocket_over_http2(self):
        def script(connection):
            upgrade(connection)
            connection.send(connection.take(3))

        server = self.serve(script)
        with Client(self.start_with(server)) as client:
            stream = client.open(NAME, "/ws2", "CONNECT", [("sec-websocket-version", "13")], end=False, protocol="websocket")
            client.until(lambda: client.answers[stream].status)
            self.assertEqual(client.answers[stream].status, 200)
            client.send(stream, b"abc", end=True)
            client.until(lambda: client.answers[stream].ended)
            self.assertEqual(client.answers[stream].body, b"abc")

    def test_a_server_that_is_not_there(self):
        keeper, port = closed_port()
        with keeper:
            proxy = self.start("--host", f"{NAME}=http://127.0.0.1:{port}", "--access-log", "-")
            got = proxy.ask(NAME, "/gone")
            self.assertEqual((got.status, got.get("X-Proxy-Error"), got.get("Content-Type")),
                             (502, "port_closed", "application/json; charset=utf-8"))
            self.assertEqual(got.json(), {"message": "Nothing listens at the server of this host", "code": 502})
            page = proxy.ask(NAME, fields="User-Agent: Mozilla/5.0\r\nAccept: text/html\r\n")
            self.assertEqual(page.status, 502)
            self.assertNotIn(str(port).encode(), page.body)
            self.assertNotIn(b"andbox is", page.body)
        self.assertEqual(proxy.metric("proxy_host_errors_total", host=NAME), 2)
        self.assertEqual(proxy.metric("proxy_errors_total", **{"class": "port_closed"}), 2)
        line = self.entry("/gone")
        self.assertEqual((line["handler"], line["status"], line["error"]), (NAME, 502, "port_closed"))

    def test_a_server_that_hangs_up(self):
        server = self.serve(lambda connection: connection.request())
        got = self.start_with(server).ask(NAME)
        self.assertEqual((got.status, got.get("X-Proxy-Error")), (502, "upstream_reset"))
        self.assertEqual(sorted(got.json()), ["code", "message"])

    def test_the_proxy_itself_is_no_server(self):
        """Neither a metadata service nor the proxy's own ports can be reached by a host."""
        self.start("--host", f"{NAME}=http://169.254.169.254")
        got = self.proxy.ask(NAME)
        self.assertEqual((got.status, got.get("X-Proxy-Error")), (502, "address_refused"))

    def test_a_name_for_the_server(self):
        server = self.serve()
        proxy = self.start("--host", f"{NAME}=http://localhost:{server.port}/")
        self.assertEqual(proxy.ask(NAME).status, 200)

    def test_its_share_is_that_of_a_sandbox(self):
        """What one host has at once leaves room for others."""
        def script(connection):
            connection.request()
            connection.take_all()

        server, sandbox = self.serve(script), self.serve()
        self.descriptors = 300
        proxy = self.start_with(server)
        limit = proxy.metric("proxy_exchanges_max")
        clients = []
        try:
            for _ in range(limit):
                client = proxy.connect()
                clients.append(client)
                client.send(f"GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n")
            wait_for(lambda: proxy.metric("proxy_host_errors_total", host=NAME) > 0, "the first that is refused")
            self.assertGreater(proxy.metric("proxy_errors_total", **{"class": "sandbox_share"}), 0)
        finally:
            for client in clients:
                client.close()
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of all")
        self.assertEqual(proxy.ask(self.host(sandbox)).status, 200)


class Refused(Test):
    def test_what_is_no_host(self):
        self.start()
        for text, words in (("api.test", "NAME=http://"), ("api.test=127.0.0.1:80", "http://HOST"), ("=http://127.0.0.1", "not a host name"),
                            ("api.test=https://127.0.0.1", "http://HOST"), ("api.test=http://", "http://HOST"),
                            ("api.test=http://127.0.0.1:0", "http://HOST"), ("api.test=http://127.0.0.1:99999", "http://HOST"),
                            ("api.test=http://a b", "http://HOST"), ("api.test=http://127.0.0.1/path", "http://HOST"),
                            ("api.test=http://netns:/run/a", "http://HOST"), ("a..b=http://127.0.0.1", "not a host name"),
                            ("api.test:80=http://127.0.0.1", "not a host name"), ("api_x/=http://127.0.0.1", "not a host name")):
            done = subprocess.run([program(), "--listen", "127.0.0.1:0", "--admin", "none", "--host", text], capture_output=True,
                                  text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 1, text)
            self.assertIn("-host " + text, done.stderr)
            self.assertIn(words, done.stderr)
        done = subprocess.run([program(), "--listen", "127.0.0.1:0", "--admin", "none", "--host", "a.test=http://127.0.0.1", "--host",
                               "A.test.=http://127.0.0.1"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertIn("given twice", done.stderr)


if __name__ == "__main__":
    main()
