#!/usr/bin/env python3
"""Sandboxes that sleep: the hook that wakes them is asked once, everybody waits, and whatever it answers (or
does not) becomes the right answer. The hook is a scripted server.
"""
import hashlib
import json
import os
import subprocess
import tempfile
import threading

from support import PATIENCE, Server, answer, answered, closed_port, main, one_of, program, quiet_for, wait_for
from tunnel_support import ASK, SWITCH
from wake_support import SLEEPS, Waking


class Wake(Waking):
    # ---- who waits, and for how many questions

    def test_s026_a_hundred_requests_one_question(self):
        server = self.serve()
        proxy = self.begin(reply=answer('{"state":"running"}'))
        self.hook.go.clear()
        clients = [self.client(server, f"/{i}") for i in range(100)]
        self.waiting(100)
        self.hook.go.set()
        for i, client in enumerate(clients):
            response = client.response()
            self.assertEqual((response.status, response.json()["line"]), (200, f"GET /{i} HTTP/1.1"))
        self.assertEqual(self.hook.questions, [{"sandboxId": "abc", "port": server.port, "lifecycleId": "first"}])
        self.assertEqual(proxy.metric("proxy_wakes_total", outcome="look_again"), 1)
        self.assertEqual(proxy.metric("proxy_wake_call_seconds_count"), 1)

    def test_s018_s029_a_dial_under_way_ends_with_its_life(self):
        server = Server()  # bound, but not listening yet: connections are refused and tried again
        self.servers.append(server)
        proxy = self.begin(sandbox="127.0.0.1,resume=any,lifecycle=first", reply=answer('{"state":"running","lifecycle_id":"second"}'))
        self.hook.go.clear()
        clients = []

        def waits():
            proxy.call("PATCH", "/sandboxes/abc", {"state": "running"})
            before = proxy.metric("proxy_dial_retries_total")
            clients.append(self.client(server))
            wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered(clients[-1:]), "the first attempt")
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            wait_for(lambda: proxy.metric("proxy_wake_waiting") == 1 or answered(clients[-1:]), "it to wait, or to have given up before")
            return not answered(clients[-1:])

        one_of(waits, "a request that waits")
        client = clients[-1]
        server.start()  # whoever lives at the address now
        keeper, closed = closed_port()
        self.assertEqual(proxy.ask(f"{closed}-other.sandbox.test").status, 502, "by then all attempts would have been made")
        keeper.close()
        self.assertEqual(server.connections, [])
        self.hook.go.set()
        self.assertEqual(client.response().status, 200)
        self.assertEqual(len(server.connections), 1)

    def test_s026_too_many_waiters(self):
        server = self.serve()
        self.begin("--wake-waiters", "10", reply=answer('{"state":"running"}'))
        self.hook.go.clear()
        clients = [self.client(server) for _ in range(10)]
        self.waiting(10)
        response = self.proxy.ask(self.host(server))
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")),
                         (503, "wake_queue_full", "5"))
        clients.pop().close()
        self.waiting(9)
        clients.append(self.client(server))
        self.waiting(10)
        self.hook.go.set()
        for client in clients:
            self.assertEqual(client.response().status, 200)
        self.assertEqual(len(self.hook.questions), 1)

    def test_s027_the_body_stays_unread_and_a_websocket_waits(self):
        def script(connection):
            fields = dict(connection.head()[1])
            if "Upgrade" in fields:
                connection.send(SWITCH + b"hello")
                connection.take_all()
                return
            length, got = int(fields["Content-Length"]), len(connection.buffer)
            while got < length:
                got += len(connection.sock.recv(1 << 20)) or length
            connection.send(answer(str(got)))

        server = self.serve(script)
        proxy = self.begin(reply=answer('{"state":"running"}'))
        self.hook.go.clear()
        socket = self.client(server, fields=ASK)
        uploads = []
        size = 32 * 1024 * 1024
        before = proxy.memory_kib()
        for _ in range(4):
            upload = proxy.connect()
            self.addCleanup(upload.close)
            upload.send(f"POST / HTTP/1.1\r\nHost: {self.host(server)}\r\nContent-Length: {size}\r\n\r\n")
            upload.sock.setblocking(False)
            sent = 0
            stalled = 0
            while stalled < 20:  # until the kernel takes no more
                try:
                    sent += upload.sock.send(b"x" * min(65536, size - sent))
                    stalled = 0
                except BlockingIOError:
                    stalled += 1
                    quiet_for(0.005)
            self.assertLess(sent, size)
            uploads.append((upload, sent))
        self.waiting(5)
        self.assertLess(proxy.memory_kib() - before, 4096)
        self.hook.go.set()
        self.assertEqual(socket.head()[0].split()[1], "101")
        self.assertEqual(socket.take(5), b"hello")
        socket.close()
        for upload, sent in uploads:
            upload.sock.settimeout(PATIENCE)
            upload.send(b"x" * (size - sent))
            self.assertEqual(upload.response().body, str(size).encode())

    def test_s020_clients_that_leave(self):
        server = self.serve()
        proxy = self.begin(reply=answer('{"state":"running"}'))
        self.hook.go.clear()
        first, second = self.client(server), self.client(server)
        self.waiting(2)
        first.abort()
        self.waiting(1)
        self.hook.asked()
        second.close()
        self.waiting(0)
        wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of both")
        # The platform is at work already: the next request joins instead of asking again.
        third = self.client(server)
        self.waiting(1)
        self.hook.go.set()
        self.assertEqual(third.response().status, 200)
        self.assertEqual(len(self.hook.questions), 1)

    def test_s020_an_answer_nobody_waits_for_is_published(self):
        server = self.serve()
        proxy = self.begin(reply=answer('{"lifecycle_id":"second"}'))
        self.hook.go.clear()
        client = self.client(server)
        self.hook.asked()
        client.abort()
        self.waiting(0)
        self.hook.go.set()
        wait_for(lambda: proxy.call("GET", "/sandboxes/abc")[1]["state"] == "running", "the sandbox")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"], "second")

    # ---- what the hook says

    def test_s028_answers_of_the_hook(self):
        server = self.serve()
        proxy = self.begin(reply=b"")
        table = [
            (answer("", "403 Forbidden"), 403, "wake_denied", None, "check the access token"),
            (answer("", "404 Not Found"), 502, "sandbox_not_found", None, "The sandbox was not found"),
            (answer("", "410 Gone"), 502, "sandbox_not_found", None, "The sandbox was not found"),
            (answer("", "409 Conflict"), 409, "sandbox_transitioning", "1", "still transitioning"),
            (answer("", "409 Conflict", "Retry-After: 7\r\n"), 409, "sandbox_transitioning", "7", "still transitioning"),
            (answer('{"message":"No more than 20 é"}', "429 Too Many"), 429, "wake_limit", "5", "No more than 20 é"),
            (answer('{"message":"' + "é" * 300 + '"}', "429 Too Many"), 429, "wake_limit", "5", "é" * 127),
            (answer("", "429 Too Many"), 429, "wake_limit", "5", "Sandbox limit reached"),
            (answer("no", "429 Too Many"), 429, "wake_limit", "5", "Sandbox limit reached"),
            (answer("", "503 Later", "Retry-After: 30\r\n"), 503, "wake_unavailable", "30", "cannot be resumed"),
            (answer("", "500 Oops"), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer("", "401 Who"), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer("", "302 Found", "Location: http://127.0.0.1:1/\r\n"), 503, "wake_unavailable", "5", "cannot"),
            (answer('{"address":""}'), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer('{"address":"a b"}'), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer('{"colour":"red"}'), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer("[]"), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer("running"), 503, "wake_unavailable", "5", "cannot be resumed"),
            (answer("x" * 70000), 503, "wake_unavailable", "5", "cannot be resumed"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", 503, "wake_unavailable", "5", "cannot be resumed"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", 503, "wake_unavailable", "5", "cannot be resumed"),
            (b"", 503, "wake_unavailable", "5", "cannot be resumed"),
            (lambda connection: connection.abort(), 503, "wake_unavailable", "5", "cannot be resumed"),
        ]
        for reply, status, cause, retry, message in table:
            with self.subTest(reply=reply):
                self.hook.reply = reply
                response = proxy.ask(self.host(server))
                self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")),
                                 (status, cause, retry))
                self.assertIn(message, response.json()["message"])
                self.assertEqual((response.json()["code"], response.json()["sandboxId"]), (status, "abc"))
        self.assertEqual(len(self.hook.questions), len(table))
        self.assertEqual(server.received, b"")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["state"], "paused")

    def test_s028_a_hook_that_hangs_or_is_not_there(self):
        server = self.serve()
        proxy = self.begin("--wake-timeout-ms", "300")
        response = proxy.ask(self.host(server))
        self.assertEqual((response.status, response.get("X-Proxy-Error"), response.get("Retry-After")), (503, "wake_timeout", "5"))
        self.hook.reply = answer("", "200 OK")  # yes, but nothing ever comes of it
        self.hook.go.set()
        self.assertEqual(proxy.ask(self.host(server)).get("X-Proxy-Error"), "wake_timeout")
        self.hook.server.stop()
        wait_for(lambda: proxy.ask(self.host(server)).get("X-Proxy-Error") == "wake_unavailable", "the refusal before the time is over")

    def test_s028_the_hook_names_the_new_address(self):
        server = self.serve(host="127.0.0.2")
        proxy = self.begin("--allow-loopback-upstreams", sandbox=",state=paused,resume=any,lifecycle=first",
                           reply=answer('{"address":"127.0.0.2","lifecycle_id":"second"}'))
        self.assertEqual(proxy.ask(self.host(server)).status, 200)
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["lifecycle_id"], "second")
        self.assertEqual(len(self.hook.questions), 1)

    def test_s005_case_185_an_address_that_is_never_dialled(self):
        server = self.serve()
        proxy = self.begin(sandbox="10.0.0.1,state=paused,resume=any",
                           reply=answer('{"address":"169.254.169.254"}'))
        self.assertEqual(proxy.ask(self.host(server)).get("X-Proxy-Error"), "address_refused")
        self.hook.reply = answer('{"address":"2002:a9fe:a9fe::"}')
        proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
        self.assertEqual(proxy.ask(self.host(server)).get("X-Proxy-Error"), "address_refused")
        self.assertEqual(len(self.hook.questions), 2)

    def test_the_catalog_is_changed_instead(self):
        server = self.serve()
        proxy = self.begin()
        for question, reply in ((1, None), (2, answer("")), (3, answer("{}"))):
            client = self.client(server)
            self.hook.asked(question)
            if reply is not None:  # "yes", and the catalog follows
                self.hook.reply = reply
                self.hook.go.set()
                wait_for(lambda: proxy.metric("proxy_wake_call_seconds_count") == question, "the answer")
                self.waiting(1)
            self.wake()
            self.assertEqual(client.response().status, 200)
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            if reply is None:  # it hangs still: that call is a thing of the past, whatever it will say
                self.hook.reply = answer("", "404 Not Found")
                self.hook.go.set()
                wait_for(lambda: proxy.metric("proxy_wake_call_seconds_count") == 1, "its answer")
                self.hook.go.clear()
        self.assertEqual(proxy.metric("proxy_wakes_total", outcome="look_again"), 3)

    def test_a_late_answer_does_not_undo_what_the_catalog_says(self):
        server = self.serve()
        proxy = self.begin(reply=answer('{"address":"10.255.255.1"}'))
        self.hook.go.clear()
        client = self.client(server)
        self.hook.asked()
        self.wake(lifecycle_id="second")
        self.assertEqual(client.response().status, 200)
        self.hook.go.set()
        wait_for(lambda: proxy.metric("proxy_wake_call_seconds_count") == 1, "its answer")
        self.assertEqual(proxy.call("GET", "/sandboxes/abc")[1]["address"], "127.0.0.1")

    def test_the_question(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "token")
            with open(path, "w", encoding="ascii") as file:
                file.write("s3cret\n")
            server = self.serve()
            proxy = self.begin("--wake-token-file", path, reply=answer('{"state":"running"}'))
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
        line, fields = self.hook.fields[0]
        self.assertEqual(line, "POST /wake?x=1 HTTP/1.1")
        fields = dict(fields)
        self.assertEqual((fields["Authorization"], fields["Content-Type"], fields["Host"]),
                         ("Bearer s3cret", "application/json", f"localhost:{self.hook.server.port}"))
        self.assertNotIn("s3cret", "\n".join(proxy.log))

    # ---- states

    def test_s032_killed_while_requests_wait(self):
        server = self.serve()
        proxy = self.begin()
        clients = [self.client(server) for _ in range(20)]
        self.waiting(20)
        self.hook.asked()
        proxy.call("DELETE", "/sandboxes/abc")
        for client in clients:
            response = client.response()
            self.assertEqual((response.status, response.json()["message"]), (502, "The sandbox was not found"))

    def test_s032_stopping_and_policy_withdrawn(self):
        server = self.serve()
        proxy = self.begin()
        for change, cause in (({"state": "stopping"}, "sandbox_not_found"), ({"auto_resume": "off"}, "sandbox_paused")):
            client = self.client(server)
            self.waiting(1)
            proxy.call("PATCH", "/sandboxes/abc", change)
            self.assertEqual(client.response().get("X-Proxy-Error"), cause)
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused", "auto_resume": "any"})

    def test_s001_without_the_policy_nothing_wakes(self):
        server = self.serve()
        proxy = self.begin(sandbox="127.0.0.1,state=paused")
        response = proxy.ask(self.host(server))
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (502, "sandbox_paused"))
        proxy.call("PATCH", "/sandboxes/abc", {"state": "resuming"})
        self.assertEqual(proxy.ask(self.host(server)).status, 409)
        self.assertEqual(self.hook.questions, [])

    def test_s028_between_states_requests_wait(self):
        server = self.serve()
        proxy = self.begin("--wake-timeout-ms", "5000", sandbox="127.0.0.1,state=pausing,resume=any,lifecycle=first",
                           reply=answer('{"state":"running"}'))
        response = proxy.ask(self.host(server))
        self.assertEqual((response.status, response.get("X-Proxy-Error")), (409, "sandbox_transitioning"))
        proxy.call("PATCH", "/sandboxes/abc", {"state": "resuming"})
        client = self.client(server)
        self.waiting(1)
        self.wake()
        self.assertEqual(client.response().status, 200)
        self.assertEqual(self.hook.questions, [])
        proxy.call("PATCH", "/sandboxes/abc", {"state": "pausing"})
        client = self.client(server)
        self.waiting(1)
        proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
        self.assertEqual(client.response().status, 200)
        self.assertEqual(len(self.hook.questions), 1)

    def test_s029_a_pause_begins_while_it_is_dialled(self):
        server = self.serve(host="127.0.0.2", nobody_at="127.0.0.1")
        proxy = self.begin("--allow-loopback-upstreams", sandbox="127.0.0.1,resume=any",
                           reply=answer('{"address":"127.0.0.2"}'))
        for first in ("pausing", "paused"):
            def is_woken(first=first):
                proxy.call("PATCH", "/sandboxes/abc", {"state": "running", "address": "127.0.0.1"})
                before = proxy.metric("proxy_dial_retries_total")
                client = self.client(server)
                wait_for(lambda: proxy.metric("proxy_dial_retries_total") > before or answered([client]), "the first retry")
                proxy.call("PATCH", "/sandboxes/abc", {"state": first})
                if first == "pausing":
                    wait_for(lambda: proxy.metric("proxy_wake_waiting") == 1 or answered([client]), "it to wait, or to have given up before")
                    proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
                response = client.response()
                self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "port_closed")))
                return response.status == 200

            one_of(is_woken, "an answer of the one that was woken")
        self.assertEqual(len(self.hook.questions), 2)

    def test_s031_asleep_again_and_again_comes_to_an_end(self):
        """A sandbox that is paused as soon as it runs: a request wakes it three times at most."""
        keeper, port = closed_port()
        proxy = self.begin(reply=answer('{"state":"running"}'))

        def ends_asleep():
            done = threading.Event()

            def pause():
                while not done.is_set():
                    if proxy.call("GET", "/sandboxes/abc")[1]["state"] == "running":
                        proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})

            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            del self.hook.questions[:]
            thread = threading.Thread(target=pause)
            thread.start()
            response = proxy.ask(f"{port}-abc.d")
            done.set()
            thread.join()
            told = (response.status, response.get("X-Proxy-Error"))
            self.assertIn(told, ((502, "sandbox_paused"), (502, "port_closed")))  # a pause came too late
            self.assertLessEqual(len(self.hook.questions), 3)
            return told == (502, "sandbox_paused")

        one_of(ends_asleep, "each time a pause while it is dialled")
        keeper.close()

    # ---- who may

    def test_s031_a_private_port_does_not_wake_without_its_token(self):
        server = self.serve()
        proxy = self.begin(sandbox=SLEEPS + ",token=t0p", reply=answer('{"state":"running"}'))
        for fields, cause, found in (
                ("", "token_missing", "Token header 'e2b-traffic-access-token' is missing"),
                ("e2b-traffic-access-token: t0q\r\n", "token_invalid", "Provided token in header 'e2b-traffic-access-token' is invalid")):
            response = proxy.ask(self.host(server), fields=fields)
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (403, cause))
            self.assertEqual(response.json()["message"], f"Sandbox is secured with traffic access token. {found}")
        self.assertEqual((self.hook.questions, proxy.call("GET", "/sandboxes/abc")[1]["state"]), ([], "paused"))
        self.assertEqual(proxy.ask(self.host(server), fields="e2b-traffic-access-token: t0p\r\n").status, 200)
        self.assertEqual(len(self.hook.questions), 1)

    def test_s031_a_secured_envd_does_not_wake_without_its_token(self):
        server = self.serve()
        digest = hashlib.sha256(b"envd-token").hexdigest()
        proxy = self.begin(sandbox=f"{SLEEPS},token=t0p,envd={server.port},envdhash={digest}",
                           reply=answer('{"state":"running"}'))
        for fields in ("", "X-Access-Token: no\r\n", "e2b-traffic-access-token: t0p\r\n"):
            response = proxy.ask("49983-abc.d", "/health", fields=fields)
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (403, "wake_denied"))
        self.assertEqual(self.hook.questions, [])
        self.assertEqual(proxy.ask("49983-abc.d", "/health", fields="X-Access-Token: envd-token\r\n").status, 200)
        self.assertEqual(self.hook.questions[0]["port"], 49983)
        # envd checks for itself when it runs.
        self.assertEqual(proxy.ask("49983-abc.d", "/health").status, 200)

    def test_s010_limits_count_nobody_who_waits(self):
        server = self.serve()
        proxy = self.begin(sandbox=SLEEPS + ",limit=1", reply=answer("", "404 Not Found"))
        for _ in range(3):
            self.assertEqual(proxy.ask(self.host(server)).status, 502)
        self.assertEqual(proxy.active("abc"), 0)
        self.wake()
        self.assertEqual(proxy.ask(self.host(server)).status, 200)

    # ---- sandboxes that nobody knows

    def test_s031_unknown_sandboxes_are_for_the_hook_to_judge(self):
        server = self.serve()
        record = {"address": "127.0.0.1", "traffic_access_token": "t0p", "auto_resume": "any"}
        proxy = self.begin("--wake-unknown", "--allow-loopback-upstreams", "--probe", "HEAD * *", sandbox="127.0.0.1")

        def reply(connection):
            if self.hook.questions[-1].get("trafficAccessToken") == "t0p":
                connection.send(answer(json.dumps(record)))
            else:
                connection.send(answer("", "403 No"))

        self.hook.reply = reply
        self.hook.go.set()
        host = self.host(server, "new")
        token = "e2b-traffic-access-token: t0p\r\n"
        for fields in ("", token.replace("t0p", "no"), "X-Access-Token: abc\r\n"):
            self.assertEqual(proxy.ask(host, fields=fields).get("X-Proxy-Error"), "wake_denied")
        self.assertEqual(proxy.ask(host, fields=token * 2).get("X-Proxy-Error"), "wake_denied")
        self.assertEqual(proxy.ask(host, method="HEAD", fields=token).get("X-Proxy-Error"), "sandbox_not_found")
        self.assertEqual(self.hook.questions, [
            {"sandboxId": "new", "port": server.port}, {"sandboxId": "new", "port": server.port, "trafficAccessToken": "no"},
            {"sandboxId": "new", "port": server.port, "envdAccessToken": "abc"}])
        self.assertEqual(server.received, b"")
        self.assertEqual(proxy.ask(host, fields=token).status, 200)
        self.assertEqual(proxy.ask(host, fields=token).status, 200)
        self.assertEqual(proxy.ask(host).get("X-Proxy-Error"), "token_missing")
        self.assertEqual(len(self.hook.questions), 4)
        self.assertNotIn("t0p", "\n".join(proxy.log))

    def test_s028_unknown_sandboxes_that_stay_unknown(self):
        server = self.serve()
        proxy = self.begin("--wake-unknown", reply=b"")
        for reply, status, cause in ((answer(""), 502, "sandbox_not_found"), (answer("", "404 No"), 502, "sandbox_not_found"),
                                     (answer("", "429 No"), 429, "wake_limit"), (b"", 503, "wake_unavailable"),
                                     (answer('{"colour":"red"}'), 503, "wake_unavailable"), (answer('{"state":"running"}'), 503, "wake_unavailable")):
            self.hook.reply = reply
            response = proxy.ask(self.host(server, "new"))
            self.assertEqual((response.status, response.get("X-Proxy-Error")), (status, cause))
        self.assertEqual(len(self.hook.questions), 6)
        self.assertEqual(proxy.call("GET", "/sandboxes/new")[0], 404)

    # ---- the proxy's own end

    def test_s095_the_proxy_ends_while_requests_wait(self):
        server = self.serve()
        proxy = self.begin("--drain-ms", "200")
        client = self.client(server)
        self.hook.asked()
        self.assertEqual(proxy.stop(), 0)
        client.take_all()
        self.assertTrue(client.reset or client.eof)

    def test_flags_that_are_refused(self):
        for flags in (["--wake-url", "https://h/"], ["--wake-url", "http://"], ["--wake-url", "http://a b/"],
                      ["--wake-url", "http://h:99999/"], ["--wake-url", "http://[::1/"], ["--wake-token-file", "/dev/null"],
                      ["--wake-url", "http://h/", "--wake-token-file", "/dev/null"], ["--wake-timeout-ms", "0"]):
            done = subprocess.run([program(), "--listen", "127.0.0.1:0", "--admin", "none", *flags],
                                  capture_output=True, timeout=PATIENCE, check=False)
            self.assertNotEqual(done.returncode, 0, flags)
            self.assertEqual(b"https:// is not spoken here" in done.stderr, "https://h/" in flags, done.stderr)
        self.proxy = self.start()


if __name__ == "__main__":
    main()
