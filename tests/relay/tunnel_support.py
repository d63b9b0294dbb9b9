"""What stays open: tunnels (WebSockets and others), streams, downloads."""
import base64
import hashlib

ASK = ("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
       "sec-websocket-version: 13\r\nSec-WebSocket-Protocol: chat, superchat\r\n"
       "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\nOrigin: http://page.test\r\nCookie: a=b\r\n")
SWITCH = (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: Upgrade\r\n"
          b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: chat\r\n\r\n")
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
DOWNLOAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx"


def held(connection):
    """Begins what the path asks for, and stays."""
    path = connection.request().line.split()[1]
    if path == "/tunnel":
        connection.send(SWITCH + b"x")
    elif path != "/wait":
        connection.send({"/stream": STREAM, "/download": DOWNLOAD}[path])
    connection.take_all()


def accept_of(request):
    key = request.get("Sec-WebSocket-Key") or ""
    return base64.b64encode(hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()


def upgrade(connection):
    """Accepts an upgrade; the request."""
    request = connection.request()
    connection.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    f"Sec-WebSocket-Accept: {accept_of(request)}\r\nX-Seen: yes\r\n\r\n")
    return request
