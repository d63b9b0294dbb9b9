#!/usr/bin/env python3
"""h2spec, over TLS as browsers come: all of its tests, strict ones included."""
import os
import re
import subprocess
import unittest

from support import ROOT, Proxy, Test, answer, main

H2SPEC = os.path.join(ROOT, "build", "conformance", "h2spec")


def script(connection):
    while connection.request().line:
        connection.send(answer("some bytes that make a body"))


class Conformance(Test):
    @unittest.skipUnless(os.path.exists(H2SPEC), "h2spec is not installed (tests/conformance/install-h2spec.sh; it needs Go)")
    def test_h2spec(self):
        server = self.serve(script)
        self.proxy = Proxy("--sandbox", f"abc=127.0.0.1,envd={server.port}", "--default-sandbox", "abc", over_tls=True)
        self.addCleanup(self.finish)
        result = subprocess.run([H2SPEC, "-h", "127.0.0.1", "-p", str(self.proxy.port), "-t", "-k", "-S", "-o", "2"],
                                capture_output=True, text=True, timeout=200, check=False)
        counts = re.search(r"(\d+) tests, (\d+) passed, (\d+) skipped, (\d+) failed", result.stdout)
        self.assertIsNotNone(counts, result.stdout[-2000:] + result.stderr)
        failures = result.stdout[result.stdout.find("Failures:"):] if "Failures:" in result.stdout else ""
        self.assertEqual(counts.groups(), ("146", "146", "0", "0"), failures[-4000:])


if __name__ == "__main__":
    main()
