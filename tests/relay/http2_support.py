"""HTTP/2 clients for the relay tests: python-h2 where a client is to be right, frames by hand where it is to be
wrong. h2 is installed with the end-to-end tests' libraries (build/venv); without it the tests say so and fail.
"""
import glob
import os
import socket
import struct
import sys

from support import PATIENCE, ROOT, Connection, TlsSocket, described

sys.path += glob.glob(os.path.join(ROOT, "build", "venv", "lib", "python3*", "site-packages"))

import h2.config  # noqa: E402
import h2.connection  # noqa: E402
import h2.errors  # noqa: E402
import h2.events  # noqa: E402
import h2.settings  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
Codes = h2.errors.ErrorCodes
SettingCodes = h2.settings.SettingCodes


def connect(proxy, name=None):
    sock = socket.create_connection(("127.0.0.1", proxy.port), PATIENCE)
    if not proxy.over_tls:
        return Connection(sock)
    context = proxy.tls_context()
    context.set_alpn_protocols(["h2"])
    wrapped = TlsSocket(sock, context, name)
    assert wrapped.tls.selected_alpn_protocol() == "h2"
    return Connection(wrapped)


class Answer:
    """What has come of one stream so far."""

    def __init__(self):
        self.status, self.fields, self.body, self.trailers = None, [], b"", None
        self.interim, self.ended, self.reset = [], False, None

    def get(self, name):
        values = [value for key, value in self.fields if key == name]
        return values[0] if values else None

    @property
    def over(self):
        return self.ended or self.reset is not None


class Client:
    """One connection. Windows are opened as bytes come, except those of streams in `stalled`."""

    def __init__(self, proxy, settings=None, name=None):
        self.connection = connect(proxy, name)
        config = h2.config.H2Configuration(client_side=True, header_encoding="latin-1", validate_outbound_headers=False,
                                           normalize_outbound_headers=False, validate_inbound_headers=True)
        self.h2 = h2.connection.H2Connection(config)
        self.answers, self.stalled, self.goaways, self.settings = {}, set(), [], {}
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(settings)
        self.h2.increment_flow_control_window(16 << 20)
        self.flush()
        self.until(lambda: self.settings, "the server's SETTINGS")

    def flush(self):
        data = self.h2.data_to_send()
        if data:
            self.connection.send(data)

    def take(self, event):
        stream = getattr(event, "stream_id", None)
        answer = self.answers.get(stream)
        if isinstance(event, h2.events.ResponseReceived):
            answer.fields = list(event.headers)
            answer.status = int(answer.get(":status"))
        elif isinstance(event, h2.events.InformationalResponseReceived):
            answer.interim.append(dict(event.headers))
        elif isinstance(event, h2.events.TrailersReceived):
            answer.trailers = list(event.headers)
        elif isinstance(event, h2.events.DataReceived):
            answer.body += event.data
            if stream not in self.stalled and event.flow_controlled_length:
                self.h2.acknowledge_received_data(event.flow_controlled_length, stream)
            elif event.flow_controlled_length:
                self.h2.increment_flow_control_window(event.flow_controlled_length)
        elif isinstance(event, h2.events.StreamEnded):
            answer.ended = True
        elif isinstance(event, h2.events.StreamReset):
            answer.reset = event.error_code
        elif isinstance(event, h2.events.ConnectionTerminated):
            self.goaways.append(event)
        elif isinstance(event, h2.events.RemoteSettingsChanged):
            self.settings.update({key: change.new_value for key, change in event.changed_settings.items()})

    def read(self):
        """False at the end."""
        try:
            data = self.connection.sock.recv(65536)
        except ConnectionResetError:
            self.connection.reset = True
            return False
        if not data:
            return False
        for event in self.h2.receive_data(data):
            self.take(event)
        self.flush()
        return True

    def until(self, condition, what=None):
        while not condition():
            if not self.read():
                raise AssertionError(f"the connection ended before {what or described(condition)}; answers: "
                                     f"{({stream: vars(answer) for stream, answer in self.answers.items()})!r:.2000}")
        return True

    def open(self, authority, path="/", method="GET", fields=(), end=True, scheme="https", **pseudo):
        """Sends a request's head; the stream's id."""
        stream = self.h2.get_next_available_stream_id()
        self.answers[stream] = Answer()
        head = [(":method", method), (":scheme", scheme), (":authority", authority), (":path", path)]
        head += [(":" + name, value) for name, value in pseudo.items()]
        self.h2.send_headers(stream, head + list(fields), end_stream=end)
        self.flush()
        return stream

    def send(self, stream, data=b"", end=False):
        """As windows allow; what comes meanwhile is taken."""
        rest = memoryview(data)
        while True:
            window = min(self.h2.local_flow_control_window(stream), self.h2.max_outbound_frame_size)
            piece, rest = rest[:window], rest[window:]
            if piece or (end and not data):
                self.h2.send_data(stream, piece.tobytes(), end_stream=end and not rest)
                self.flush()
            if not rest:
                return
            if self.h2.local_flow_control_window(stream) == 0:
                self.read()
                if self.answers[stream].over:
                    return

    def answer(self, stream):
        self.until(lambda: self.answers[stream].over, f"the answer to {stream}")
        return self.answers[stream]

    def ask(self, authority, *arguments, body=None, **options):
        """A whole request; the whole answer."""
        stream = self.open(authority, *arguments, end=body is None, **options)
        if body is not None:
            self.send(stream, body, end=True)
        return self.answer(stream)

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---- by hand ----

def frame(kind, flags=0, stream=0, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def head(authority, extra=b""):
    """An HPACK block: GET / of that authority (shorter than 127 bytes), without a table."""
    name = authority.encode()
    return b"\x82\x87\x84\x01" + bytes([len(name)]) + name + extra


class Raw:
    """A connection whose frames are made by hand."""

    def __init__(self, proxy):
        self.connection = connect(proxy)
        self.frames = []
        self.send(PREFACE + frame(SETTINGS))

    def send(self, data):
        """False when the other side does not take it any more."""
        try:
            self.connection.send(data)
            return True
        except OSError:
            return False

    def read_frame(self):
        """(kind, flags, stream, payload), or None at the end."""
        header = self.connection.take(9)
        if len(header) < 9:
            return None
        length = int.from_bytes(header[:3], "big")
        got = (header[3], header[4], int.from_bytes(header[5:9], "big"), self.connection.take(length))
        self.frames.append(got)
        return got

    def read_until(self, kind, stream=None):
        while True:
            got = self.read_frame()
            if got is None or (got[0] == kind and stream in (None, got[2])):
                return got

    def goaway(self):
        """The code of the GOAWAY that must come, and the end after it."""
        got = self.read_until(GOAWAY)
        if got is None:
            raise AssertionError(f"no GOAWAY but the end, after {self.frames[-3:]}")
        while self.read_frame():
            pass
        return int.from_bytes(got[3][4:8], "big")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()
