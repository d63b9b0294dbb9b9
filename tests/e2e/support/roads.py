"""The ways from the Python clients to envd, the same as roads.mjs has for the JavaScript ones: direct, headers, domain
and shared. E2E_ROADS="direct domain" takes some alone."""

import json
import os
import subprocess

from programs import free_port, start_envd, start_proxy, tls_folder

DOMAIN = "sbx.localhost"
SANDBOX = "sbx1"
ACCESS_TOKEN = "access-token-1"
TRAFFIC_TOKEN = "traffic-token-1"

TAKEN = os.environ.get("E2E_ROADS", "direct headers domain shared").split()


class ControlApi:
    """support/control_api.mjs, which Python clients ask, too."""

    def __init__(self, **options):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "control_api.mjs")
        self.child = subprocess.Popen(["node", script, json.dumps(options)], stdout=subprocess.PIPE, text=True)
        assert self.child.stdout.readline() == "ready\n"

    def stop(self):
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()


class Way:
    """What a road needs, running, and the environment that sends a client along it."""

    def __init__(self, road, ports=()):
        self.road = road
        self.is_secure = road in ("domain", "shared")
        self.programs = []
        self.tls_port = None
        settings = {"DEBUG": "true"}
        if road == "direct":
            # Straight to several ports means at localhost, as in debug mode.
            self.envd = self.started(start_envd(port=49983 if ports else None))
            if not ports:
                settings["SANDBOX_URL"] = self.envd.url
        else:
            self.envd = self.started(start_envd(access_token=ACCESS_TOKEN if self.is_secure else None))
            if not self.is_secure:
                proxy = self.started(start_proxy(SANDBOX, self.envd.port))
                settings["SANDBOX_URL"] = proxy.url
            else:
                settings = self.take_tls(ports)
        for name in ("DEBUG", "SANDBOX_URL", "DOMAIN", "API_KEY"):
            os.environ.pop(f"E2B_{name}", None)
        for name, value in settings.items():
            os.environ[f"E2B_{name}"] = value

    def started(self, program):
        self.programs.insert(0, program)
        return program

    def take_tls(self, ports):
        # One port at two addresses, because a domain has one port: the proxy's and the control API's. (The names are
        # in the world's hosts file.)
        port = self.tls_port = free_port()
        self.proxy = self.started(start_proxy(SANDBOX, self.envd.port, tls_port=port, traffic_token=TRAFFIC_TOKEN if ports else None))
        sandbox = {"accessToken": ACCESS_TOKEN}
        if ports:
            sandbox["trafficToken"] = TRAFFIC_TOKEN
        tls = {"certificate": os.path.join(tls_folder(), "tls.crt"), "key": os.path.join(tls_folder(), "tls.key")}
        self.started(ControlApi(host="127.0.0.2", port=port, tls=tls, sandboxes={SANDBOX: sandbox}))
        settings = {"DOMAIN": f"{DOMAIN}:{port}", "API_KEY": "e2b_" + "0123456789abcdef" * 2}
        if self.road == "shared":
            settings["SANDBOX_URL"] = f"https://sandbox.{DOMAIN}:{port}"
        return settings

    def stop(self):
        for program in self.programs:
            program.stop()
