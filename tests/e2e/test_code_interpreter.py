"""The PyPI client `e2b-code-interpreter`, unmodified, with a server on port 49999 of the sandbox
(support/interpreter.py, run by envd)."""

import asyncio
import importlib.metadata
import os
import sys
import urllib.error
import urllib.request

SUPPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "support")
sys.path.insert(0, SUPPORT)

import e2b_code_interpreter  # noqa: E402
from e2b import (  # noqa: E402
    CommandExitException, InvalidArgumentException, NotFoundException, SandboxException, TimeoutException,
)
from programs import ANSWER_S, eventually, main  # noqa: E402
from roads import TRAFFIC_TOKEN  # noqa: E402
from sdk_suite import Base, suites  # noqa: E402

FOLDER = "/home/user/interpreter"


class Suite(Base):
    module = e2b_code_interpreter
    ports = (49999,)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.loop.run_until_complete(cls.start_server())

    @classmethod
    async def start_server(cls):
        with open(os.path.join(SUPPORT, "interpreter.py"), encoding="utf-8") as program:
            await cls.sandbox.files.write(f"{FOLDER}/interpreter.py", program.read())
        cls.server = await cls.sandbox.commands.run("exec python3 -B interpreter.py", background=True, cwd=FOLDER, timeout=0)

        def listens():
            try:
                return urllib.request.urlopen("http://127.0.0.1:49999/health", timeout=2).status == 200
            except OSError:
                return False
        eventually("the server listens", listens)

    async def check_1_output_results_and_errors(self, sandbox):
        told = []
        code = 'print one\nwarn two\nshow {"text": "2", "html": "<b>2</b>", "json": {"a": [1]}}\nprint grüße 🙂\nraise ValueError no good'
        execution = await sandbox.run_code(
            code, on_stdout=lambda message: told.append(("out", message.line)),
            on_stderr=lambda message: told.append(("err", message.line)),
            on_result=lambda result: told.append(("result", result.text)),
            on_error=lambda error: told.append(("error", error.name)))
        self.assertEqual(told, [("out", "one\n"), ("err", "two\n"), ("result", "2"), ("out", "grüße 🙂\n"), ("error", "ValueError")])
        self.assertEqual((execution.logs.stdout, execution.logs.stderr), (["one\n", "grüße 🙂\n"], ["two\n"]))
        self.assertEqual((execution.text, execution.results[0].html), ("2", "<b>2</b>"))
        self.assertEqual((execution.error.name, execution.error.value), ("ValueError", "no good"))
        self.assertEqual(execution.execution_count, 1)

    async def check_a_result_streams_piece_by_piece(self, sandbox):
        """The server goes on only when the client has had the piece before."""
        seen = []

        def on_stdout(message):
            seen.append(message.line)
            with open(f"{FOLDER}/has-{message.line.strip()}", "w"):
                pass

        code = "\n".join(f"print {i}\nwait {FOLDER}/has-{i}" for i in (1, 2, 3))
        await sandbox.run_code(code, on_stdout=on_stdout)
        self.assertEqual(seen, ["1\n", "2\n", "3\n"])
        for i in (1, 2, 3):
            os.unlink(f"{FOLDER}/has-{i}")

    async def check_variables_and_languages(self, sandbox):
        execution = await sandbox.run_code("variable COLOUR\ncontext", envs={"COLOUR": "blue"}, language="r")
        self.assertEqual(execution.logs.stdout, ["blue", "r in /home/user"])

    async def check_long_and_many_lines(self, sandbox):
        self.assertEqual(len((await sandbox.run_code("long 5000000")).results[0].text), 5000000)
        self.assertEqual((await sandbox.run_code("many 5000")).logs.stdout, [f"{i}\n" for i in range(5000)])

    async def abandoned(self, sandbox, code):
        def noticed():
            try:
                with open(f"{FOLDER}/abandoned", encoding="utf-8") as file:
                    return code in file.read()
            except FileNotFoundError:
                return False
        await self.until("the server has noticed", noticed)
        os.unlink(f"{FOLDER}/abandoned")

    async def check_a_timeout_reaches_the_server(self, sandbox):
        code = f"print on\nwait {FOLDER}/never-{self.road}"
        started = []
        for seconds in (1, 5, 25):  # on a busy machine the first ones may be over before the server has heard of them
            await self.fails(TimeoutException, sandbox.run_code(code, timeout=seconds, on_stdout=started.append))
            if started:
                break
        await self.abandoned(sandbox, code)

    async def check_a_cancelled_execution_reaches_the_server(self, sandbox):
        if self.client == "sync":
            return
        code = f"print on\nwait {FOLDER}/cancelled-{self.road}"
        started = asyncio.Event()
        task = asyncio.ensure_future(sandbox.run_code(code, on_stdout=lambda message: started.set()))
        await asyncio.wait_for(started.wait(), 40)
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await self.abandoned(sandbox, code)

    async def check_failures_of_the_server(self, sandbox):
        self.assertIn("no kernel", str(await self.fails(NotFoundException, sandbox.run_code("status 404 no kernel"))))
        await self.fails(SandboxException, sandbox.run_code("status 500 broken"))
        await self.fails(TimeoutException, sandbox.run_code("status 502 gone"))
        # An execution that breaks off while the sandbox lives is not a killed sandbox.
        cut = await self.fails(Exception, sandbox.run_code("print some\ndie"))
        self.assertNotIsInstance(cut, TimeoutException)

    async def check_contexts(self, sandbox):
        context = await sandbox.create_code_context(language="python", cwd="/tmp")
        self.assertEqual((context.language, context.cwd), ("python", "/tmp"))
        self.assertIn(context.id, [each.id for each in await sandbox.list_code_contexts()])
        self.assertEqual((await sandbox.run_code("context", context=context)).logs.stdout, ["python in /tmp"])
        await self.fails(InvalidArgumentException, sandbox.run_code("context", context=context, language="r"))
        await sandbox.restart_code_context(context)
        await sandbox.remove_code_context(context)
        await self.fails(NotFoundException, sandbox.remove_code_context(context.id))

    async def check_tokens(self, sandbox):
        if self.road == "direct":
            return
        names = (await sandbox.run_code("headers")).logs.stdout[0].split()
        self.assertIn("host", names)
        for name in ("e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token"):
            self.assertNotIn(name, names)
        if self.road == "domain":
            url = f"https://{sandbox.get_host(49999)}/health"
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url, timeout=ANSWER_S)
            self.assertEqual(caught.exception.code, 403)
            caught.exception.close()
            request = urllib.request.Request(url, headers={"e2b-traffic-access-token": TRAFFIC_TOKEN})
            with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
                self.assertEqual(answer.status, 200)

    async def check_zz_the_server_ends_and_its_port_is_closed(self, sandbox):
        self.assertIs(await self.server.kill(), True)
        await self.fails(CommandExitException, self.server.wait())
        if self.road == "headers":
            error = await self.fails(TimeoutException, sandbox.run_code("print x"))
            self.assertIn("port is not open", str(error))


VERSION = importlib.metadata.version("e2b-code-interpreter")
suites(globals(), Suite, f"PyPI e2b-code-interpreter {VERSION}", ["direct", "headers", "domain", "shared"])
del Suite, Base

if __name__ == "__main__":
    main()
