"""A stand-in for the server that code-interpreter clients talk to on port 49999 of the sandbox, to be run inside it.

POST /execute streams newline-delimited JSON, a chunk for every line. "Code" is a list of steps, one a line:

    print TEXT | warn TEXT      output
    show JSON                   a result
    raise NAME VALUE            an error
    variable NAME | context     prints an environment variable of the execution; its context
    headers                     prints the request's header names
    wait FILE                   until the file exists, with a keepalive now and then
    many COUNT                  prints that many lines
    long SIZE                   a result with that many bytes in one line
    die                         ends without a word
    status CODE TEXT            answers that instead

/contexts keeps contexts. An execution whose client has left appends its code to ./abandoned. The tests end this
program with the command that runs it.
"""

import json
import os
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

lock = threading.Lock()
contexts = {"default": {"id": "default", "language": "python", "cwd": "/home/user"}}
executions = 0


class Left(Exception):
    pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while True:
                size = int(self.rfile.readline(), 16)
                data += self.rfile.read(size)
                self.rfile.readline()
                if size == 0:
                    return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status, value=None):
        data = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, "OK")
        if self.path == "/contexts":
            with lock:
                return self.answer(200, list(contexts.values()))
        self.answer(404, "nothing here")

    def do_POST(self):
        body = self.body()
        message = json.loads(body) if body else None
        parts = self.path.split("/")
        if self.path == "/execute":
            return self.execute(message)
        if self.path == "/contexts":
            with lock:
                made = {"id": f"context-{len(contexts)}", "language": message.get("language") or "python",
                        "cwd": message.get("cwd") or "/home/user"}
                contexts[made["id"]] = made
            return self.answer(200, made)
        if parts[1] == "contexts" and parts[-1] == "restart" and parts[2] in contexts:
            return self.answer(200, {})
        self.answer(404, f"no {self.path}")

    def do_DELETE(self):
        with lock:
            if contexts.pop(self.path.split("/")[-1], None) is None:
                return self.answer(404, "no such context")
        self.answer(200, {})

    def line(self, **fields):
        data = json.dumps(fields).encode() + b"\n"
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        except OSError as error:
            raise Left from error

    def execute(self, message):
        global executions
        code = message["code"]
        if message.get("context_id") and message.get("language"):
            return self.answer(400, "either context_id or language")
        if code.startswith("status "):
            _, status, text = code.split(" ", 2)
            return self.answer(int(status), text)
        with lock:
            executions += 1
            count = executions
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self.line(type="number_of_executions", execution_count=count)
            for step in code.split("\n"):
                if step == "die":
                    self.close_connection = True
                    return
                self.step(message, *step.partition(" ")[::2])
            self.line(type="end_of_execution")
            self.wfile.write(b"0\r\n\r\n")
        except Left:
            self.close_connection = True
            with open("abandoned", "a") as file:
                file.write(code + "\n")

    def step(self, message, word, rest):
        if word in ("print", "warn"):
            self.line(type="stdout" if word == "print" else "stderr", text=rest + "\n", timestamp=time.time_ns())
        elif word == "show":
            self.line(type="result", is_main_result=True, **json.loads(rest))
        elif word == "long":
            self.line(type="result", is_main_result=True, text="x" * int(rest))
        elif word == "many":
            for i in range(int(rest)):
                self.line(type="stdout", text=f"{i}\n", timestamp=0)
        elif word == "raise":
            name, _, value = rest.partition(" ")
            self.line(type="error", name=name, value=value, traceback=f"{name}: {value}")
        elif word == "variable":
            self.line(type="stdout", text=(message.get("env_vars") or {}).get(rest, "none"), timestamp=0)
        elif word == "context":
            context = contexts.get(message.get("context_id") or "default")
            language = message.get("language") or context["language"]
            self.line(type="stdout", text=f"{language} in {context['cwd']}", timestamp=0)
        elif word == "headers":
            self.line(type="stdout", text=" ".join(sorted(name.lower() for name in self.headers)), timestamp=0)
        elif word == "wait":
            turn = 0
            while not os.path.exists(rest):
                if select.select([self.connection], [], [], 0.02)[0]:
                    raise Left
                turn += 1
                if turn % 10 == 0:
                    self.line(type="keepalive")
        else:
            raise ValueError(word)


ThreadingHTTPServer.request_queue_size = 128
server = ThreadingHTTPServer(("127.0.0.1", 49999), Handler)
print("listening", flush=True)
server.serve_forever()
