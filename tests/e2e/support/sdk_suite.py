"""What the PyPI client `e2b` must be able to do, straight to envd and through the proxy."""

import asyncio
import importlib.metadata
import inspect
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(__file__))
os.environ["E2B_DEBUG"] = "true"

import e2b  # noqa: E402
from e2b import Sandbox  # noqa: E402
from programs import eventually, start_envd, start_proxy  # noqa: E402

try:
    from e2b.sandbox.commands.command_handle import PtySize
except ImportError:
    from e2b import PtySize

VERSION = f"PyPI e2b {importlib.metadata.version('e2b')}"


class Base(unittest.TestCase):
    through_proxy = False

    @classmethod
    def setUpClass(cls):
        cls.programs = [start_envd()]
        cls.url = cls.programs[0].url
        if cls.through_proxy:
            cls.programs.append(start_proxy("sbx1", cls.programs[0].port))
            cls.url = cls.programs[1].url
        os.environ["E2B_SANDBOX_URL"] = cls.url
        cls.folder = f"/home/user/python-{cls.__name__.lower()}"
        cls.open()

    @classmethod
    def tearDownClass(cls):
        for program in reversed(cls.programs):
            program.stop()


class SyncSuite(Base):
    @classmethod
    def open(cls):
        cls.sandbox = Sandbox.connect("sbx1") if cls.through_proxy else Sandbox.create()
        cls.commands, cls.files, cls.pty = cls.sandbox.commands, cls.sandbox.files, cls.sandbox.pty

    # commands

    def test_run_streams_and_collects(self):
        out, err = [], []
        result = self.commands.run("echo one; sleep 0.2; echo two; echo oops >&2",
                                   on_stdout=out.append, on_stderr=err.append)
        self.assertEqual((result.exit_code, result.stdout, result.stderr), (0, "one\ntwo\n", "oops\n"))
        self.assertEqual((out, err), (["one\n", "two\n"], ["oops\n"]))

    def test_run_with_exit_code(self):
        with self.assertRaises(e2b.CommandExitException) as caught:
            self.commands.run("echo out; echo err >&2; exit 3")
        error = caught.exception
        self.assertEqual((error.exit_code, error.stdout, error.stderr), (3, "out\n", "err\n"))
        self.assertEqual(error.error, "exit status 3")

    def test_run_as_default_and_other_user(self):
        self.assertEqual(self.commands.run("id -un; pwd; echo $HOME").stdout, "user\n/home/user\n/home/user\n")
        self.assertEqual(self.commands.run("id -un; pwd", user="root").stdout, "root\n/root\n")
        with self.assertRaises(e2b.AuthenticationException):
            self.commands.run("true", user="nobody-here")

    def test_run_with_environment_and_directory(self):
        self.files.make_dir(self.folder)
        result = self.commands.run('printf "%s|%s" "$PWD" "$A"', cwd=self.folder, envs={"A": "x=y\nz"})
        self.assertEqual(result.stdout, f"{self.folder}|x=y\nz")
        with self.assertRaises(e2b.InvalidArgumentException) as caught:
            self.commands.run("true", cwd="/no/such/place")
        self.assertIn("/no/such/place", str(caught.exception))

    def test_run_with_many_bytes_per_character(self):
        line = "grüße 日本語 🙂🙃 "
        self.assertEqual(self.commands.run(f"printf '{line}%.0s' $(seq 1 2000)").stdout, line * 2000)

    def test_run_with_five_megabytes_of_output(self):
        self.assertEqual(self.commands.run("head -c 5000000 /dev/zero | tr '\\0' a").stdout, "a" * 5000000)

    def test_run_timeout(self):
        path = f"{self.folder}-pid"
        with self.assertRaises(e2b.TimeoutException):
            self.commands.run(f"echo $$ > {path}; exec sleep 30", timeout=2.5)
        pid = int(self.files.read(path))
        eventually("the command is gone", lambda: not os.path.exists(f"/proc/{pid}"))
        self.assertEqual(self.commands.run("sleep 0.2; echo done", timeout=0).stdout, "done\n")

    def test_background_command_is_listed_fed_and_killed(self):
        command = self.commands.run('while read -r line; do echo "got $line"; done', background=True, stdin=True)
        listed = [each for each in self.commands.list() if each.pid == command.pid]
        self.assertEqual((listed[0].cmd, listed[0].args[:2]), ("/bin/bash", ["-l", "-c"]))
        self.commands.send_stdin(command.pid, "first\n")
        stream = iter(command)
        self.assertEqual(next(stream)[0], "got first\n")
        self.assertIs(command.kill(), True)
        with self.assertRaises(e2b.CommandExitException) as caught:
            command.wait()
        self.assertEqual(caught.exception.exit_code, -1)
        self.assertIs(self.commands.kill(command.pid), False)
        self.assertNotIn(command.pid, [each.pid for each in self.commands.list()])

    def test_close_stdin(self):
        command = self.commands.run("cat; echo end", background=True, stdin=True)
        self.commands.send_stdin(command.pid, "text")
        self.commands.close_stdin(command.pid)
        self.assertEqual(command.wait().stdout, "textend\n")

    def test_stream_input(self):
        if not hasattr(self.commands, "stream_input"):
            self.skipTest("this client does not have it")
        command = self.commands.run("sha256sum", background=True, stdin=True)
        self.commands.stream_input(command.pid, (f"{i}\n" for i in range(2000)))
        self.commands.close_stdin(command.pid)
        expected = self.commands.run("seq 0 1999 | sha256sum").stdout
        self.assertEqual(command.wait().stdout, expected)
        with self.assertRaises(e2b.NotFoundException):
            self.commands.stream_input(999999, ["x"])

    def test_without_stdin_readers_see_the_end(self):
        self.assertEqual(self.commands.run("cat; readlink /proc/self/fd/0").stdout, "/dev/null\n")

    def test_connect_to_a_running_command(self):
        command = self.commands.run("sleep 0.5; echo late; exit 4", background=True)
        command.disconnect()
        again = self.commands.connect(command.pid)
        with self.assertRaises(e2b.CommandExitException) as caught:
            again.wait()
        self.assertEqual((caught.exception.exit_code, caught.exception.stdout), (4, "late\n"))

    def test_pids_that_never_were(self):
        self.assertIs(self.commands.kill(999999), False)
        with self.assertRaises(e2b.NotFoundException):
            self.commands.connect(999999)
        with self.assertRaises(e2b.NotFoundException):
            self.commands.send_stdin(999999, "x")

    def test_killed_process_is_gone_at_once(self):
        command = self.commands.run("sleep 300", background=True)
        command.kill()
        with self.assertRaises(e2b.CommandExitException):
            self.commands.run(f"kill -0 {command.pid}")

    # terminals

    def test_terminal(self):
        terminal = self.pty.create(PtySize(rows=40, cols=100), envs={"COLOUR": "blue"}, cwd="/tmp")
        self.assertIn(terminal.pid, [each.pid for each in self.commands.list()])
        seen = bytearray()
        output = iter(terminal)

        def until(text):
            while text not in seen:
                seen.extend(next(output)[2] or b"")

        self.pty.send_stdin(terminal.pid, b'stty size; echo "<$PWD $COLOUR $TERM>"\n')
        until(b"40 100\r\n")
        until(b"</tmp blue xterm-256color>")
        self.pty.resize(terminal.pid, PtySize(rows=37, cols=133))
        self.pty.send_stdin(terminal.pid, b"stty size\n")
        until(b"37 133\r\n")
        if hasattr(self.pty, "stream_input"):
            self.pty.stream_input(terminal.pid, ["echo st", "reamed-$((40+2))\n"])
            until(b"streamed-42")
        self.pty.send_stdin(terminal.pid, b"exit 6\n")
        with self.assertRaises(e2b.CommandExitException) as caught:
            terminal.wait()
        self.assertEqual(caught.exception.exit_code, 6)

    def test_terminal_is_killed_and_connected_to(self):
        terminal = self.pty.create(PtySize(rows=24, cols=80))
        terminal.disconnect()
        again = self.pty.connect(terminal.pid)
        self.assertEqual(again.pid, terminal.pid)
        self.assertIs(self.pty.kill(terminal.pid), True)
        with self.assertRaises(e2b.CommandExitException):
            again.wait()
        self.assertIs(self.pty.kill(terminal.pid), False)

    # files

    def test_write_and_read(self):
        path = f"{self.folder}/read/file.txt"
        data = "Hello, wörld! 🙂\n"
        info = self.files.write(path, data)
        self.assertEqual((info.name, info.path), ("file.txt", path))
        self.assertEqual(self.files.read(path), data)
        self.assertEqual(bytes(self.files.read(path, format="bytes")), data.encode())
        self.assertEqual(b"".join(self.files.read(path, format="stream")), data.encode())
        for kind in (data.encode(), io.BytesIO(data.encode()), io.StringIO(data)):
            self.files.write(path, kind)
            self.assertEqual(self.files.read(path), data)
        self.files.write(path, "")
        self.assertEqual(self.files.read(path), "")

    def test_write_many(self):
        files = [{"path": f"{self.folder}/many/{name}/f", "data": f"I am {name}"} for name in "abc"]
        many = getattr(self.files, "write_files", None) or self.files.write
        self.assertEqual([each.path for each in many(files)], [each["path"] for each in files])
        self.assertEqual(self.files.read(f"{self.folder}/many/b/f"), "I am b")
        if "use_octet_stream" in inspect.signature(self.files.write).parameters:
            self.files.write(f"{self.folder}/many/o", "octets", use_octet_stream=True)
            self.assertEqual(self.files.read(f"{self.folder}/many/o"), "octets")

    def test_relative_paths(self):
        self.assertEqual(self.files.write("python-relative", "r").path, "/home/user/python-relative")
        self.assertEqual(self.files.read("~/python-relative"), "r")
        self.files.remove("python-relative")
        self.assertIs(self.files.exists("/home/user/python-relative"), False)

    def test_failures(self):
        with self.assertRaises(e2b.NotFoundException):
            self.files.read(f"{self.folder}/missing")
        with self.assertRaises(e2b.InvalidArgumentException):
            self.files.read("/tmp")
        with self.assertRaises(e2b.InvalidArgumentException):
            self.files.write("/tmp", "x")
        with self.assertRaises(e2b.NotFoundException):
            self.files.list(f"{self.folder}/missing")
        with self.assertRaises(e2b.NotFoundException):
            self.files.get_info(f"{self.folder}/missing")
        with self.assertRaises(e2b.NotFoundException):
            self.files.rename(f"{self.folder}/missing", f"{self.folder}/x")

    def test_get_info(self):
        path = f"{self.folder}/info/file.bin"
        self.files.write(path, "Hello, World!")
        info = self.files.get_info(path)
        self.assertEqual((info.name, info.path, info.size, info.mode), ("file.bin", path, 13, 0o644))
        self.assertEqual(info.type.value, "file")
        self.assertEqual((info.permissions, info.owner, info.group), ("-rw-r--r--", "user", "user"))
        self.assertEqual(self.files.get_info(f"{self.folder}/info").type.value, "dir")

    def test_directories(self):
        root = f"{self.folder}/list"
        self.assertIs(self.files.make_dir(f"{root}/a/b"), True)
        self.assertIs(self.files.make_dir(f"{root}/a/b"), False)
        self.files.write(f"{root}/a/b/c", "x")
        self.files.write(f"{root}/z", "x")

        def names(**options):
            return [each.path[len(root) + 1:] for each in self.files.list(root, **options)]

        self.assertEqual(names(), ["a", "z"])
        self.assertEqual(names(depth=3), ["a", "a/b", "a/b/c", "z"])
        self.assertEqual(self.files.rename(f"{root}/a", f"{root}/m").path, f"{root}/m")
        self.assertEqual(self.files.read(f"{root}/m/b/c"), "x")
        self.assertIs(self.files.exists(f"{root}/a"), False)
        self.files.remove(f"{root}/m")
        self.assertEqual(names(), ["z"])
        self.files.remove(f"{root}/m")

    def test_watch(self):
        watched = f"{self.folder}/watched"
        self.files.make_dir(f"{watched}/old")
        told = []

        def until(handle, *wanted):
            def look():
                told.extend((event.type.value, event.name) for event in handle.get_new_events())
                return set(wanted) <= set(told)
            eventually(f"{wanted}", look)

        handle = self.files.watch_dir(watched)
        self.assertEqual(handle.get_new_events(), [])
        self.files.write(f"{watched}/f", "one")
        until(handle, ("create", "f"), ("write", "f"))
        self.files.rename(f"{watched}/f", f"{watched}/g")
        self.files.remove(f"{watched}/g")
        until(handle, ("rename", "f"), ("create", "g"), ("remove", "g"))
        handle.stop()
        with self.assertRaises(e2b.SandboxException):
            handle.get_new_events()
        handle = self.files.watch_dir(watched, recursive=True)
        self.files.write(f"{watched}/new/deep/f", "x")
        until(handle, ("create", "new"), ("create", "new/deep"), ("create", "new/deep/f"))
        handle.stop()
        with self.assertRaises(e2b.NotFoundException):
            self.files.watch_dir(f"{self.folder}/not-there")

    def test_big_file(self):
        data = os.urandom(5000000)
        self.files.write(f"{self.folder}/big", data)
        self.assertEqual(bytes(self.files.read(f"{self.folder}/big", format="bytes")), data)

    def test_is_running(self):
        self.assertIs(self.sandbox.is_running(), True)

    def test_zz_nothing_is_left(self):
        self.files.remove(self.folder)
        eventually("no process is listed", lambda: not self.commands.list())


class AsyncSuite(Base):
    @classmethod
    def open(cls):
        pass

    def go(self, body):
        async def opened():
            from e2b import AsyncSandbox
            sandbox = await (AsyncSandbox.connect("sbx1") if self.through_proxy else AsyncSandbox.create())
            await asyncio.wait_for(body(sandbox), 60)
        asyncio.run(opened())

    def test_commands(self):
        async def body(sandbox):
            result = await sandbox.commands.run("echo out; echo err >&2")
            self.assertEqual((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))
            with self.assertRaises(e2b.CommandExitException) as caught:
                await sandbox.commands.run("exit 3")
            self.assertEqual(caught.exception.exit_code, 3)
            with self.assertRaises(e2b.TimeoutException):
                await sandbox.commands.run("sleep 30", timeout=0.5)
            results = await asyncio.gather(*(sandbox.commands.run(f"echo {i}") for i in range(50)))
            self.assertEqual([each.stdout for each in results], [f"{i}\n" for i in range(50)])
            command = await sandbox.commands.run("cat", background=True, stdin=True)
            await sandbox.commands.send_stdin(command.pid, "text")
            await sandbox.commands.close_stdin(command.pid)
            self.assertEqual((await command.wait()).stdout, "text")
            command = await sandbox.commands.run("sleep 300", background=True)
            self.assertIn(command.pid, [each.pid for each in await sandbox.commands.list()])
            await command.disconnect()
            again = await sandbox.commands.connect(command.pid)
            self.assertIs(await again.kill(), True)
            with self.assertRaises(e2b.CommandExitException):
                await again.wait()
        self.go(body)

    def test_input_stream(self):
        async def body(sandbox):
            if not hasattr(sandbox.commands, "stream_input"):
                self.skipTest("this client does not have it")
            command = await sandbox.commands.run("sha256sum", background=True, stdin=True)
            async with sandbox.commands.stream_input(command.pid) as writer:
                for i in range(500):
                    await writer.send(f"{i}\n")
            await sandbox.commands.close_stdin(command.pid)
            expected = (await sandbox.commands.run("seq 0 499 | sha256sum")).stdout
            self.assertEqual((await command.wait()).stdout, expected)
        self.go(body)

    def test_terminal(self):
        async def body(sandbox):
            seen = bytearray()
            terminal = await sandbox.pty.create(PtySize(rows=40, cols=100), on_data=seen.extend)

            async def until(text):
                for _ in range(500):
                    if text in seen:
                        return
                    await asyncio.sleep(0.02)
                self.fail(f"{text} is not in {bytes(seen)}")

            await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
            await until(b"40 100\r\n")
            await sandbox.pty.resize(terminal.pid, PtySize(rows=37, cols=133))
            await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
            await until(b"37 133\r\n")
            await sandbox.pty.kill(terminal.pid)
            with self.assertRaises(e2b.CommandExitException):
                await terminal.wait()
        self.go(body)

    def test_files(self):
        async def body(sandbox):
            path = f"{self.folder}/f"
            await sandbox.files.write(path, "content")
            self.assertEqual(await sandbox.files.read(path), "content")
            parts = [part async for part in await sandbox.files.read(path, format="stream")]
            self.assertEqual(b"".join(parts), b"content")
            self.assertEqual([each.name for each in await sandbox.files.list(self.folder)], ["f"])
            told = []
            handle = await sandbox.files.watch_dir(self.folder, lambda event: told.append((event.type.value, event.name)))
            await sandbox.files.write(path, "content")
            while ("write", "f") not in told:
                await asyncio.sleep(0.01)
            await handle.stop()
            self.assertEqual((await sandbox.files.get_info(path)).size, 7)
            self.assertIs(await sandbox.files.make_dir(f"{self.folder}/d"), True)
            await sandbox.files.rename(path, f"{self.folder}/g")
            self.assertIs(await sandbox.files.exists(path), False)
            await sandbox.files.remove(self.folder)
            self.assertIs(await sandbox.files.exists(self.folder), False)
            with self.assertRaises(e2b.NotFoundException):
                await sandbox.files.read(path)
            self.assertIs(await sandbox.is_running(), True)
        self.go(body)
