#!/usr/bin/env python3
"""Certificates are taken from their files anew while the proxy runs."""
import os
import shutil
import signal
import ssl
import threading

from support import Connection, TlsSocket, main, wait_for
from tls_support import Tls, anyone, development, fingerprint


class Reload(Tls):
    def replace(self, directory, fresh):
        """As an administrator does: one file after the other, each in one go."""
        for name in ("tls.key", "tls.crt"):
            shutil.copy(os.path.join(fresh, name), os.path.join(directory, name + ".new"))
            os.rename(os.path.join(directory, name + ".new"), os.path.join(directory, name))

    def is_shown(self, directory):
        return self.shown(self.connect()) == fingerprint(os.path.join(directory, "tls.crt"))

    def test_s090_reload_under_load(self):
        directory, fresh = self.directory(development), self.directory(development)
        server = self.serve()
        proxy = self.start("--certificate", directory)
        host = self.host(server)
        stop, failures, count = threading.Event(), [], [0, 0]

        def kept(context):
            client = Connection(TlsSocket(self.raw(), context))
            while not stop.is_set():
                response = self.ask(client, host, close=False)
                if response is None or response.status != 200:
                    failures.append(response)
                    return
                count[0] += 1

        def anew(context):
            while not stop.is_set():
                try:
                    with Connection(TlsSocket(self.raw(), context)) as client:
                        response = self.ask(client, host)
                    if response is None or response.status != 200:
                        failures.append(response)
                    count[1] += 1
                except (OSError, ssl.SSLError) as error:
                    failures.append(error)

        threads = [threading.Thread(target=target, args=(anyone(),)) for target in (kept, kept, anew)]
        for thread in threads:
            thread.start()
        try:
            for number in range(6):
                wait_for(lambda: min(count) > number * 3, "requests")
                self.replace(directory, fresh)
                directory_now, fresh = fresh, self.directory(development)
                how = number % 3
                if how == 1:
                    proxy.process.send_signal(signal.SIGHUP)
                elif how == 2:
                    self.assertEqual(proxy.call("POST", "/certificates/reload"), (200, {"certificates": 1}))
                wait_for(lambda: self.is_shown(directory_now), "the new certificate")
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        self.assertEqual(failures, [])
        self.assertGreater(min(count), 15)

    def test_s090_a_bad_file_keeps_the_old_certificate(self):
        directory = self.directory(development)
        proxy = self.start("--certificate", directory)
        good = fingerprint(os.path.join(directory, "tls.crt"))
        for damage in ("garbage", "", None):
            key = os.path.join(directory, "tls.key")
            if damage is None:
                shutil.copy(os.path.join(directory, "ca-key.pem"), key)
            else:
                with open(key, "w", encoding="ascii") as file:
                    file.write(damage)
            status, body = proxy.call("POST", "/certificates/reload")
            self.assertEqual(status, 409)
            self.assertIn("tls.key", body["message"])
            self.assertEqual(self.shown(self.connect()), good)
        self.assertGreaterEqual(proxy.metric("proxy_certificate_reload_failures_total"), 3)
        proxy.logged("the old ones stay", '"error"')
        shutil.rmtree(directory)
        self.assertEqual(proxy.call("POST", "/certificates/reload")[0], 409)
        self.assertEqual(self.shown(self.connect()), good)
        self.assertEqual(proxy.call("GET", "/certificates/reload")[0], 405)

    def test_links_may_change_all_at_once(self):
        # As a volume of Kubernetes does: files are links into ..data, which is a link that is replaced.
        top = self.directory()
        generations = [self.directory(development) for _ in range(2)]
        os.symlink(generations[0], os.path.join(top, "..data"))
        for name in ("tls.crt", "tls.key"):
            os.symlink(os.path.join("..data", name), os.path.join(top, name))
        self.start("--certificate", f"{top}/tls.crt,{top}/tls.key")
        self.assertTrue(self.is_shown(generations[0]))
        os.symlink(generations[1], os.path.join(top, "..data_tmp"))
        os.rename(os.path.join(top, "..data_tmp"), os.path.join(top, "..data"))
        wait_for(lambda: self.is_shown(generations[1]), "the new generation")

    def test_without_tls_there_is_nothing_to_reload(self):
        proxy = self.start(over_tls=False)
        self.assertEqual(proxy.call("POST", "/certificates/reload")[0], 404)


if __name__ == "__main__":
    main()
