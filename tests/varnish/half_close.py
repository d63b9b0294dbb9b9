"""half_close.py ADDRESS HOST QUESTION: asks for a tunnel, sends the question, ends its direction and prints
what comes until the other ends, too. varnishtest itself cannot end one direction."""
import socket
import sys

address, host, question = sys.argv[1:]
name, port = address.rsplit(":", 1)
with socket.create_connection((name, int(port)), 60) as sock:
    sock.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: soak\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += sock.recv(1000)
    sock.sendall(question.encode())
    sock.shutdown(socket.SHUT_WR)
    piece = b" "
    while piece:
        piece = sock.recv(1000)
        got += piece
print(got.split(b"\r\n\r\n", 1)[1].decode())
