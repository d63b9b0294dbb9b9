"""TLS for the relay tests: certificates made for a test, and clients that believe everything."""
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile

from support import PATIENCE, Connection, Test, TlsSocket, program


def development(domain="sbx.localhost"):
    """A directory made by `proxy dev-certificate`."""
    directory = tempfile.mkdtemp(prefix="tls-")
    subprocess.run([program(), "dev-certificate", directory, "--domain", domain], check=True, stdout=subprocess.DEVNULL)
    return directory


def self_signed(directory, name, alternatives, key="ec"):
    """NAME.crt and NAME.key, by openssl's own program; "CERT,KEY" as the proxy takes it."""
    paths = [os.path.join(directory, f"{name}.{end}") for end in ("crt", "key")]
    kind = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if key == "ec" else ["rsa:2048"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "30", "-subj", f"/CN={name}", "-addext",
                    f"subjectAltName={alternatives}", "-out", paths[0], "-keyout", paths[1]],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return ",".join(paths)


def fingerprint(path):
    with open(path, encoding="ascii") as file:
        text = file.read()
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(text[:text.index("-----END") + 26])).hexdigest()


def anyone(**options):
    """A client that believes everything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    for name, value in options.items():
        setattr(context, name, value)
    return context


class Tls(Test):
    def start(self, *flags, **options):
        options.setdefault("over_tls", True)
        return super().start(*flags, **options)

    def directory(self, make=tempfile.mkdtemp):
        path = make()
        self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        return path

    def raw(self, port=None):
        sock = socket.create_connection(("127.0.0.1", port or self.proxy.tls_port), PATIENCE)
        self.addCleanup(sock.close)
        return sock

    def connect(self, name=None, context=None, session=None):
        client = Connection(TlsSocket(self.raw(), context or anyone(), name, session))
        self.addCleanup(client.close)
        return client

    def shown(self, client):
        return hashlib.sha256(client.sock.tls.getpeercert(True)).hexdigest()

    def ask(self, client, host, close=True):
        client.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n" + ("Connection: close\r\n" if close else "") + "\r\n")
        return client.response()
