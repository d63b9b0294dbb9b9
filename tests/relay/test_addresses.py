#!/usr/bin/env python3
"""Names with several addresses, of which the first swallows what is sent to it: nobody waits for that one alone.
"""
import socket
import tempfile
import time
import unittest

from netns_support import can_mount
from redis_support import Redis, record
from support import Test, answer, in_time, main, one_of, wait_for

HERE, DEAD, NAME = "127.0.4.1", "127.0.4.2", "twofold.test"


def swallow(port):
    """Somebody at DEAD:port whose queue is full: nothing comes back from there."""
    listener = socket.socket()
    listener.bind((DEAD, port))
    listener.listen(0)
    sockets = [listener]
    for _ in range(8):
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex((DEAD, port))
        sockets.append(client)
    return sockets


@unittest.skipUnless(can_mount(), "needs root and mount namespaces")
class Twofold(Test):
    def setUp(self):
        super().setUp()
        file = tempfile.NamedTemporaryFile("w", suffix=".hosts")  # pylint: disable=consider-using-with
        file.write(f"127.0.0.1 localhost\n{DEAD} {NAME}\n{HERE} {NAME}\n")
        file.flush()
        self.addCleanup(file.close)
        # A private view of /etc/hosts, where both addresses come in this order.
        self.prefix = ("unshare", "--mount", "sh", "-c", f'mount --bind {file.name} /etc/hosts && exec "$@"', "sh")

    def dead(self, port):
        for sock in swallow(port):
            self.addCleanup(sock.close)

    def test_s028_the_hook(self):
        hook = self.serve(lambda connection: (connection.request(), connection.send(answer('{"state":"running"}'))), host=HERE)
        self.dead(hook.port)
        server = self.serve()
        proxy = self.start("--wake-url", f"http://{NAME}:{hook.port}/", "--wake-timeout-ms", "20000",
                           "--sandbox", "abc=127.0.0.1,state=paused,resume=any", sandboxes=())

        def wake():
            proxy.call("PATCH", "/sandboxes/abc", {"state": "paused"})
            began = time.monotonic()
            self.assertEqual(proxy.ask(self.host(server)).status, 200)
            return time.monotonic() - began

        in_time(12, wake)

    def test_s001_redis(self):
        redis = Redis(extra=("--bind", HERE))
        self.addCleanup(redis.close)
        self.dead(redis.port)
        redis.client.call("SET", "sandbox:catalog:new", record())
        server = self.serve()
        proxy = self.start("--allow-loopback-upstreams", "--redis", f"redis://{NAME}:{redis.port}")
        wait_for(lambda: proxy.metric("proxy_redis_connected") == 1, "the connection")
        self.assertEqual(proxy.ask(self.host(server, "new")).status, 200)

    def test_s011_the_sandbox(self):
        server = self.serve(host=HERE)
        self.dead(server.port)
        proxy = self.start("--sandbox", f"named={NAME}")

        def is_reached():
            response = proxy.ask(self.host(server, "named"))
            self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "upstream_timeout")))
            return response.status == 200

        one_of(is_reached, "the second address within the time of a dial")


if __name__ == "__main__":
    main()
