"""Sandboxes that are network namespaces: dialled from inside, where 127.0.0.1 is theirs."""
import os
import stat
import subprocess
import sys
import tempfile
import threading
import unittest

import support
from netns_support import SERVER, Namespace, can_unshare
from support import Test, main, wait_for


@unittest.skipUnless(can_unshare(), "needs root and network namespaces")
class Netns(Test):
    def namespace(self, *arguments, **options):
        made = Namespace(*arguments, **options)
        self.addCleanup(made.close)
        return made

    def ask(self, port, sandbox="abc"):
        answer = self.proxy.ask(f"{port}-{sandbox}.sandbox.test")
        return answer.body.decode() if answer.status == 200 else (answer.status, answer.get("X-Proxy-Error"))

    def test_s013_loopback_of_either_family(self):
        four = self.namespace("four")
        six = self.namespace("six", host="::1")
        other = self.namespace("other", host="127.0.0.9")
        proxy = self.start("--sandbox", f"four={four.address}", "--sandbox", f"other={other.address},127.0.0.9,limit=5",
                           sandboxes=())
        self.assertEqual(proxy.call("PUT", "/sandboxes/six", {"address": six.address})[0], 201)
        self.assertEqual(self.ask(four.port, "four"), "four")
        self.assertEqual(self.ask(six.port, "six"), "six")
        self.assertEqual(self.ask(other.port, "other"), "other")
        self.assertEqual(proxy.call("GET", "/sandboxes/other")[1]["address"], f"{other.address},127.0.0.9")
        self.assertEqual(proxy.call("GET", "/sandboxes/other")[1]["connection_limit"], 5)

    def test_never_mixed(self):
        """The same port in three namespaces and on the host."""
        host = self.serve()
        spaces = {f"n{number}": self.namespace(f"n{number}", port=host.port) for number in range(3)}
        flags = [flag for name, space in spaces.items() for flag in ("--sandbox", f"{name}={space.address}")]
        self.start(*flags, sandboxes=())
        wrong = []

        def hammer(name):
            for _ in range(60):
                if self.ask(host.port, name) != name:
                    wrong.append(name)

        threads = [threading.Thread(target=hammer, args=(name,)) for name in list(spaces) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])
        self.assertEqual(host.received, b"")

    def test_s005_own_namespace_and_what_is_none(self):
        host = self.serve()
        proxy = self.start(sandboxes=())
        with tempfile.TemporaryDirectory() as directory:
            fifo, file = os.path.join(directory, "fifo"), os.path.join(directory, "file")
            os.mkfifo(fifo)
            with open(file, "wb"):
                pass
            link = os.path.join(directory, "link")
            os.symlink("/proc/self/ns/net", link)
            refused = (f"/proc/{os.getpid()}/ns/net", "/proc/self/ns/net", f"/proc/{proxy.process.pid}/ns/net", link,
                       "/proc/self/ns/mnt", "/proc/self/ns/user", fifo, file, directory, "/dev/null")
            for number, path in enumerate(refused):
                proxy.call("PUT", f"/sandboxes/bad{number}", {"address": f"netns:{path}"})
                self.assertEqual((path, self.ask(host.port, f"bad{number}")), (path, (502, "address_refused")))
            self.assertTrue(stat.S_ISFIFO(os.stat(fifo).st_mode))
        self.assertEqual(host.received, b"")
        self.assertEqual(proxy.metric("proxy_addresses_refused_total"), len(refused))
        self.assertEqual(proxy.metric("proxy_errors_total", **{"class": "address_refused"}), len(refused))
        proxy.logged("own network namespace")

    def test_s005_case_185_addresses_inside(self):
        space = self.namespace("space")
        proxy = self.start(sandboxes=())
        for number, address in enumerate(("169.254.169.254", "0.0.0.0", "224.0.0.1", "::", "2002:a9fe:a9fe::", "64:ff9b:1::a9fe:a9fe")):
            proxy.call("PUT", f"/sandboxes/bad{number}", {"address": f"{space.address},{address}"})
            self.assertEqual(self.ask(80, f"bad{number}"), (502, "address_refused"))

    def test_spellings(self):
        proxy = self.start(sandboxes=())
        for address in ("netns:", "netns:relative", "netns:/", "netns:/a/../b", "netns:/a/./b", "netns:/a,", "netns:/a,x",
                        "netns:/a,127.0.0.1,127.0.0.2", "netns:/a,fe80::1%lo", "netns:/a b", "netns:/" + "a" * 300):
            self.assertEqual((address, proxy.call("PUT", "/sandboxes/abc", {"address": address})[0]), (address, 400))

    def test_s011_port_closed_and_s012_opened_late(self):
        space = self.namespace("space")
        self.start("--sandbox", f"abc={space.address}", sandboxes=())
        keeper, port = support.closed_port()
        with keeper:
            self.assertEqual(self.ask(port), (502, "port_closed"))

        def is_served():
            before = self.proxy.metric("proxy_dial_retries_total")
            with self.proxy.connect() as client:
                client.send(f"GET / HTTP/1.1\r\nHost: {port}-abc.sandbox.test\r\n\r\n")
                wait_for(lambda: self.proxy.metric("proxy_dial_retries_total") > before, "a retry")
                late = space.run(sys.executable, "-c", SERVER, "late", "127.0.0.1", str(port))
                try:
                    response = client.response()
                    self.assertIn((response.status, response.get("X-Proxy-Error")), ((200, None), (502, "port_closed")))
                    return response.body == b"late"
                finally:
                    late.kill()
                    late.wait()
                    late.stdout.close()

        support.one_of(is_served, "an answer of the late one")

    def test_gone_and_back(self):
        """Bound to a file, as `ip netns` does: the file stays while namespaces come and go."""
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "sandbox")
            with open(path, "wb"):
                pass
            first = self.namespace("first")
            subprocess.run(["mount", "--bind", first.path, path], check=True)
            try:
                proxy = self.start("--sandbox", f"abc=netns:{path}", sandboxes=())
                self.assertEqual(self.ask(first.port), "first")
            finally:
                subprocess.run(["umount", path], check=True)
            first.close()
            self.assertEqual(self.ask(first.port), (502, "address_refused"))  # a plain file now
            second = self.namespace("second", port=first.port)
            subprocess.run(["mount", "--bind", second.path, path], check=True)
            try:
                self.assertEqual(self.ask(first.port), "second")
            finally:
                subprocess.run(["umount", path], check=True)
            proxy.call("PATCH", "/sandboxes/abc", {"address": "netns:/nowhere/at/all"})
            self.assertEqual(self.ask(80), (502, "upstream_unreachable"))

    def test_s018_moved_to_another_namespace(self):
        first, second = self.namespace("first"), self.namespace("second")
        proxy = self.start(sandboxes=())
        made = proxy.call("PUT", "/sandboxes/abc", {"address": first.address})[1]
        self.assertEqual(self.ask(first.port), "first")
        moved = proxy.call("PATCH", "/sandboxes/abc", {"address": second.address})[1]
        self.assertNotEqual(made["lifecycle_id"], moved["lifecycle_id"])
        self.assertEqual(self.ask(second.port), "second")

    def test_client_leaves_while_a_socket_is_made(self):
        space = self.namespace("space")
        proxy = self.start("--sandbox", f"abc={space.address}", sandboxes=())
        counts = []
        for _ in range(2):
            for _ in range(200):
                client = proxy.connect()
                client.send(f"GET / HTTP/1.1\r\nHost: {space.port}-abc.sandbox.test\r\n\r\n")
                client.abort()
            wait_for(lambda: proxy.metric("proxy_active_exchanges") == 0, "the end of all")
            self.assertEqual(self.ask(space.port), "space")
            counts.append(proxy.descriptors())
        wait_for(lambda: proxy.descriptors() <= counts[0] + 8, "descriptors")  # none per client that left

    def test_without_the_right_to_enter(self):
        space = self.namespace("space")
        with tempfile.NamedTemporaryFile("w", suffix=".sh", delete=False) as wrapper:
            wrapper.write(f'#!/bin/sh\nexec setpriv --bounding-set=-sys_admin -- {support.program()} "$@"\n')
        self.addCleanup(os.unlink, wrapper.name)
        os.chmod(wrapper.name, 0o755)
        usual = os.environ.get("PROXY_BIN")
        os.environ["PROXY_BIN"] = wrapper.name
        try:
            proxy = self.start("--sandbox", f"abc={space.address}", sandboxes=())
        finally:
            if usual is None:
                del os.environ["PROXY_BIN"]
            else:
                os.environ["PROXY_BIN"] = usual
        self.assertEqual(self.ask(space.port), (502, "upstream_unreachable"))
        proxy.logged("namespace not entered")


if __name__ == "__main__":
    main()
