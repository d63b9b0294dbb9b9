"""What the PyPI client `e2b` must be able to do, whichever way it reaches envd: every call of the contract's list of
envd requests per feature, by the synchronous and by the asynchronous client."""

import asyncio
import importlib.metadata
import io
import json
import os
import re
import subprocess
import unittest
import urllib.error
import urllib.request

import e2b
from clients import pieces, wrapped
from programs import ANSWER_S, ASKED_AT_LEAST, eventually, late, metric
from roads import SANDBOX, TAKEN, Way

try:
    from e2b.sandbox.commands.command_handle import PtySize
except ImportError:
    from e2b import PtySize

VERSION = f"PyPI e2b {importlib.metadata.version('e2b')}"


class Base(unittest.TestCase):
    """Checks are coroutines named check_...; they take the sandbox."""

    client = road = None  # "sync" or "async"; see roads.py
    module = e2b
    ports = ()

    @classmethod
    def setUpClass(cls):
        cls.loop = asyncio.new_event_loop()
        cls.way = Way(cls.road, cls.ports)
        cls.folder = f"/home/user/python-{cls.client}-{cls.road}"
        try:
            cls.sandbox = cls.loop.run_until_complete(cls.open())
        except BaseException:
            cls.tearDownClass()
            raise

    @classmethod
    async def open(cls):
        name = "create" if cls.road == "direct" else "connect"
        arguments = [] if cls.road == "direct" else [SANDBOX]
        if cls.client == "sync":
            return wrapped(getattr(cls.module.Sandbox, name)(*arguments))
        return await getattr(cls.module.AsyncSandbox, name)(*arguments)

    @classmethod
    def tearDownClass(cls):
        cls.way.stop()
        cls.loop.close()

    def run_check(self, check):
        self.loop.run_until_complete(asyncio.wait_for(check(self.sandbox), 60))

    async def fails(self, kind, call):
        """The exception of that kind that the call raises."""
        with self.assertRaises(kind) as caught:
            await call
        return caught.exception

    async def limited(self, make):
        """What make(seconds) gives; on a busy machine the first ones may be over before it has begun."""
        for seconds in (0.5, 2.5):
            try:
                return await make(seconds)
            except e2b.TimeoutException:
                pass
        return await make(12.5)

    async def until(self, what, ask, deadline=20.0):
        end = self.loop.time() + deadline
        asked = 0
        while not (answer := ask()):
            asked += 1
            if self.loop.time() > end and asked >= ASKED_AT_LEAST:
                raise late(what, deadline)
            await asyncio.sleep(0.01)
        return answer


def suites(module, suite, label, roads, clients=("sync", "async")):
    """One class for each client on each road, in `module`, where unittest finds them."""
    for client in clients:
        for road in roads:
            if road not in TAKEN:
                continue
            name = f"{suite.__name__}_{client}_{road}"
            tests = {}
            for check in dir(suite):
                if check.startswith("check_"):
                    tests[f"test_{check[6:]}"] = lambda self, check=check: self.run_check(getattr(self, check))
            module[name] = type(name, (suite,), {
                **tests, "client": client, "road": road, "label": f"{label} {client} {road}", "__module__": module["__name__"],
            })


class Suite(Base):
    # commands

    async def check_run_streams_and_collects(self, sandbox):
        out, err = [], []
        result = await sandbox.commands.run("echo one; sleep 0.2; echo two; echo oops >&2",
                                            on_stdout=out.append, on_stderr=err.append)
        self.assertEqual((result.exit_code, result.stdout, result.stderr), (0, "one\ntwo\n", "oops\n"))
        self.assertEqual(("".join(out), err), ("one\ntwo\n", ["oops\n"]))

    async def check_run_with_exit_code(self, sandbox):
        error = await self.fails(e2b.CommandExitException, sandbox.commands.run("echo out; echo err >&2; exit 3"))
        self.assertEqual((error.exit_code, error.stdout, error.stderr), (3, "out\n", "err\n"))
        self.assertEqual(error.error, "exit status 3")
        error = await self.fails(e2b.CommandExitException, sandbox.commands.run("no-such-command-here"))
        self.assertEqual(error.exit_code, 127)

    async def check_run_as_default_and_other_user(self, sandbox):
        run = sandbox.commands.run
        self.assertEqual((await run("id -un; pwd; echo $HOME")).stdout, "user\n/home/user\n/home/user\n")
        self.assertEqual((await run("id -un; pwd", user="root")).stdout, "root\n/root\n")
        await self.fails(e2b.AuthenticationException, run("true", user="nobody-here"))

    async def check_run_with_environment_and_directory(self, sandbox):
        await sandbox.files.make_dir(self.folder)
        result = await sandbox.commands.run('printf "%s|%s" "$PWD" "$A"', cwd=self.folder, envs={"A": "x=y\nz"})
        self.assertEqual(result.stdout, f"{self.folder}|x=y\nz")
        error = await self.fails(e2b.InvalidArgumentException, sandbox.commands.run("true", cwd="/no/such/place"))
        self.assertIn("/no/such/place", str(error))

    async def check_run_with_many_bytes_per_character(self, sandbox):
        line = "grüße 日本語 🙂🙃 "
        self.assertEqual((await sandbox.commands.run(f"printf '{line}%.0s' $(seq 1 2000)")).stdout, line * 2000)

    async def check_run_with_five_megabytes_of_output(self, sandbox):
        result = await sandbox.commands.run("head -c 5000000 /dev/zero | tr '\\0' a")
        self.assertEqual(result.stdout, "a" * 5000000)

    async def check_run_timeout(self, sandbox):
        path = f"{self.folder}-pid"
        pid = None
        for seconds in (2.5, 10):  # on a busy machine the first one may be over before its shell has begun
            await self.fails(e2b.TimeoutException, sandbox.commands.run(f"echo $$ > {path}; exec sleep 30", timeout=seconds))
            if await sandbox.files.exists(path) and (text := await sandbox.files.read(path)):
                pid = int(text)
                break
        self.assertIsNotNone(pid, "the command was not there in time")
        eventually("the command is gone", lambda: not os.path.exists(f"/proc/{pid}"))
        self.assertEqual((await sandbox.commands.run("sleep 0.2; echo done", timeout=0)).stdout, "done\n")

    async def check_background_command_is_listed_fed_and_killed(self, sandbox):
        command = await sandbox.commands.run('while read -r line; do echo "got $line"; done', background=True, stdin=True,
                                             cwd="/tmp", envs={"SHAPE": "round"})
        listed = [each for each in await sandbox.commands.list() if each.pid == command.pid]
        self.assertEqual((listed[0].cmd, listed[0].args[:2]), ("/bin/bash", ["-l", "-c"]))
        self.assertEqual((listed[0].cwd, listed[0].envs["SHAPE"]), ("/tmp", "round"))
        await sandbox.commands.send_stdin(command.pid, "first\n")
        if self.client == "sync":
            self.assertEqual(next(iter(command._target))[0], "got first\n")
        else:
            await self.until(lambda: f"output: {command.stdout!r}", lambda: command.stdout == "got first\n")
        self.assertIs(await command.kill(), True)
        error = await self.fails(e2b.CommandExitException, command.wait())
        self.assertEqual((error.exit_code, error.error), (-1, "signal: killed"))
        self.assertIs(await sandbox.commands.kill(command.pid), False)
        self.assertNotIn(command.pid, [each.pid for each in await sandbox.commands.list()])

    async def check_killed_process_is_gone_at_once(self, sandbox):
        command = await sandbox.commands.run("sleep 300", background=True)
        await command.kill()
        await self.fails(e2b.CommandExitException, sandbox.commands.run(f"kill -0 {command.pid}"))

    async def check_input_by_pid_and_by_handle(self, sandbox):
        command = await sandbox.commands.run("cat; echo end", background=True, stdin=True)
        await sandbox.commands.send_stdin(command.pid, "text ")
        await command.send_stdin(b"\xf0\x9f\x99\x82")
        await command.close_stdin()
        self.assertEqual((await command.wait()).stdout, "text \U0001f642end\n")
        command = await sandbox.commands.run("cat", background=True, stdin=True)
        await sandbox.commands.close_stdin(command.pid)
        self.assertEqual((await command.wait()).stdout, "")
        result = await sandbox.commands.run("cat; readlink /proc/self/fd/0")
        self.assertEqual(result.stdout, "/dev/null\n")

    async def check_input_stream(self, sandbox):
        if not hasattr(sandbox.commands, "stream_input"):
            self.skipTest("this client does not have it")
        command = await sandbox.commands.run("sha256sum", background=True, stdin=True)
        if self.client == "sync":
            await sandbox.commands.stream_input(command.pid, (f"{i}\n" for i in range(2000)))
            await self.fails(e2b.NotFoundException, sandbox.commands.stream_input(999999, ["x"]))
        else:
            async with sandbox.commands.stream_input(command.pid) as writer:
                for i in range(2000):
                    await writer.send(f"{i}\n")
        await sandbox.commands.close_stdin(command.pid)
        expected = (await sandbox.commands.run("seq 0 1999 | sha256sum")).stdout
        self.assertEqual((await command.wait()).stdout, expected)

    async def check_connect_to_a_running_command(self, sandbox):
        go = f"{self.folder}-go"
        command = await sandbox.commands.run(f"until [ -e {go} ]; do sleep 0.05; done; echo late; exit 4", background=True)
        await command.disconnect()
        again = await sandbox.commands.connect(command.pid)
        await sandbox.files.write(go, "now")
        error = await self.fails(e2b.CommandExitException, again.wait())
        self.assertEqual((error.exit_code, error.stdout), (4, "late\n"))
        await sandbox.files.remove(go)

    async def check_timeout_of_connect_leaves_the_command(self, sandbox):
        command = await sandbox.commands.run("sleep 300", background=True)
        await command.disconnect()
        again = await self.limited(lambda seconds: sandbox.commands.connect(command.pid, timeout=seconds))
        await self.fails(e2b.TimeoutException, again.wait())
        self.assertIs(await sandbox.commands.kill(command.pid), True)

    async def check_pids_that_never_were(self, sandbox):
        self.assertIs(await sandbox.commands.kill(999999), False)
        await self.fails(e2b.NotFoundException, sandbox.commands.connect(999999))
        await self.fails(e2b.NotFoundException, sandbox.commands.send_stdin(999999, "x"))

    async def check_fifty_commands_at_once(self, sandbox):
        async def echo(i):
            return (await sandbox.commands.run(f"echo {i}")).stdout
        results = await asyncio.gather(*(echo(i) for i in range(50)))
        self.assertEqual(results, [f"{i}\n" for i in range(50)])

    # terminals

    async def open_terminal(self, sandbox, **options):
        """(handle, until(bytes)): the screen is read by iterating, or by a callback."""
        seen = bytearray()
        size = PtySize(rows=40, cols=100)
        if self.client == "async":
            terminal = await sandbox.pty.create(size, on_data=seen.extend, **options)

            async def until(text):
                await self.until(lambda: f"{text} in {bytes(seen)}", lambda: text in seen)
        else:
            terminal = await sandbox.pty.create(size, **options)
            output = iter(terminal._target)

            async def until(text):
                while text not in seen:
                    seen.extend(next(output)[2] or b"")
        return terminal, until

    async def check_terminal(self, sandbox):
        terminal, until = await self.open_terminal(sandbox, envs={"COLOUR": "blue"}, cwd="/tmp", user="root")
        self.assertIn(terminal.pid, [each.pid for each in await sandbox.commands.list()])
        send = sandbox.pty.send_stdin
        await send(terminal.pid, b'stty size; echo "<$(id -un) $PWD $COLOUR $TERM>"\n')
        await until(b"40 100\r\n")
        await until(b"<root /tmp blue xterm-256color>")
        await sandbox.pty.resize(terminal.pid, PtySize(rows=37, cols=133))
        await send(terminal.pid, b"stty size\n")
        await until(b"37 133\r\n")
        if hasattr(sandbox.pty, "stream_input") and self.client == "sync":
            await sandbox.pty.stream_input(terminal.pid, ["echo st", "reamed-$((40+2))\n"])
            await until(b"streamed-42")
        await send(terminal.pid, b"exit 6\n")
        error = await self.fails(e2b.CommandExitException, terminal.wait())
        self.assertEqual(error.exit_code, 6)

    async def check_terminal_is_killed_and_connected_to(self, sandbox):
        terminal, _ = await self.open_terminal(sandbox)
        await terminal.disconnect()
        again = await (sandbox.pty.connect(terminal.pid) if self.client == "sync"
                       else sandbox.pty.connect(terminal.pid, on_data=lambda data: None))
        self.assertEqual(again.pid, terminal.pid)
        self.assertIs(await sandbox.pty.kill(terminal.pid), True)
        await self.fails(e2b.CommandExitException, again.wait())
        self.assertIs(await sandbox.pty.kill(terminal.pid), False)

    async def check_terminal_timeout(self, sandbox):
        terminal, _ = await self.limited(lambda seconds: self.open_terminal(sandbox, timeout=seconds))
        await self.fails(e2b.TimeoutException, terminal.wait())
        eventually("it is gone", lambda: not os.path.exists(f"/proc/{terminal.pid}"))

    # files

    async def check_write_and_read(self, sandbox):
        files = sandbox.files
        path = f"{self.folder}/read/file.txt"
        data = "Hello, wörld! 🙂\n"
        info = await files.write(path, data)
        self.assertEqual((info.name, info.path), ("file.txt", path))
        self.assertEqual(await files.read(path), data)
        self.assertEqual(bytes(await files.read(path, format="bytes")), data.encode())
        self.assertEqual(b"".join(await pieces(await files.read(path, format="stream"))), data.encode())
        for kind in (data.encode(), io.BytesIO(data.encode()), io.StringIO(data)):
            await files.write(path, kind)
            self.assertEqual(await files.read(path), data)
        await files.write(path, "")
        self.assertEqual(await files.read(path), "")

    async def check_write_many(self, sandbox):
        files = [{"path": f"{self.folder}/many/{name}/f", "data": f"I am {name}"} for name in "abc"]
        self.assertEqual([each.path for each in await sandbox.files.write_files(files)], [each["path"] for each in files])
        self.assertEqual(await sandbox.files.read(f"{self.folder}/many/b/f"), "I am b")
        self.assertEqual(await sandbox.files.write_files([]), [])

    async def check_write_as_octets_and_compressed(self, sandbox):
        path = f"{self.folder}/octets"
        await sandbox.files.write(path, "octets", use_octet_stream=True)
        self.assertEqual(await sandbox.files.read(path), "octets")
        data = "the same again and again " * 10000
        await sandbox.files.write(path, data, gzip=True)
        self.assertEqual((await sandbox.files.get_info(path)).size, len(data))
        self.assertEqual(await sandbox.files.read(path, gzip=True), data)
        files = [{"path": f"{path}-{i}", "data": f"I am {i}"} for i in range(3)]
        self.assertEqual(len(await sandbox.files.write_files(files, use_octet_stream=True)), 3)
        self.assertEqual(await sandbox.files.read(f"{path}-1"), "I am 1")

    async def check_metadata(self, sandbox):
        path = f"{self.folder}/metadata"
        metadata = (await sandbox.files.write(path, "x", metadata={"colour": "blue"})).metadata
        if metadata:  # not every file system has room for it; then nothing is claimed
            self.assertEqual(metadata, {"colour": "blue"})
        self.assertEqual((await sandbox.files.get_info(path)).metadata, metadata)
        self.assertFalse((await sandbox.files.write(path, "y")).metadata)

    async def check_names_of_every_kind(self, sandbox):
        names = ["with space", "grüße 日本語 🙂", "a'b`c$d", "a&b=c?d#e%20f+g", "-rf", "semi;colon", "back\\slash"]
        for name in names:
            path = f"{self.folder}/names/{name}"
            self.assertEqual((await sandbox.files.write(path, name)).path, path)
            self.assertEqual(await sandbox.files.read(path), name)
        listed = await sandbox.files.list(f"{self.folder}/names")
        self.assertEqual(sorted(each.name for each in listed), sorted(names))

    async def check_relative_paths(self, sandbox):
        files = sandbox.files
        self.assertEqual((await files.write("python-relative", "r")).path, "/home/user/python-relative")
        self.assertEqual(await files.read("~/python-relative"), "r")
        await files.remove("python-relative")
        self.assertIs(await files.exists("/home/user/python-relative"), False)
        name = VERSION.replace(" ", "-")  # root's home is the machine's: the suite of another version runs beside this one
        self.assertEqual((await files.write(name, "r", user="root")).path, f"/root/{name}")
        self.assertEqual((await files.get_info(name, user="root")).owner, "root")
        await files.remove(name, user="root")

    async def check_failures(self, sandbox):
        files = sandbox.files
        missing = f"{self.folder}/missing"
        await self.fails(e2b.NotFoundException, files.read(missing))
        await self.fails(e2b.InvalidArgumentException, files.read("/tmp"))
        await self.fails(e2b.InvalidArgumentException, files.write("/tmp", "x"))
        await self.fails(e2b.AuthenticationException, files.read("/etc/hostname", user="nobody-here"))
        await self.fails(e2b.NotFoundException, files.list(missing))
        await self.fails(e2b.NotFoundException, files.get_info(missing))
        await self.fails(e2b.NotFoundException, files.rename(missing, f"{self.folder}/x"))
        await self.fails(e2b.InvalidArgumentException, files.list("/tmp", depth=0))

    async def check_a_full_disk(self, sandbox):
        small = "/tmp/small-disk"
        subprocess.run(["sh", "-c", f"mkdir {small} && mount -t tmpfs -o size=64k,mode=777 tmpfs {small}"], check=True)
        try:
            await self.fails(e2b.NotEnoughSpaceException, sandbox.files.write(f"{small}/f", os.urandom(500000)))
            self.assertEqual(await sandbox.files.list(small), [])
        finally:
            subprocess.run(["sh", "-c", f"umount -l {small} && rmdir {small}"], check=True)

    async def check_get_info(self, sandbox):
        path = f"{self.folder}/info/file.bin"
        await sandbox.files.write(path, "Hello, World!")
        info = await sandbox.files.get_info(path)
        self.assertEqual((info.name, info.path, info.size, info.mode), ("file.bin", path, 13, 0o644))
        self.assertEqual(info.type.value, "file")
        self.assertEqual((info.permissions, info.owner, info.group), ("-rw-r--r--", "user", "user"))
        self.assertEqual((await sandbox.files.get_info(f"{self.folder}/info")).type.value, "dir")
        await sandbox.commands.run("ln -s file.bin link", cwd=f"{self.folder}/info")
        self.assertEqual((await sandbox.files.get_info(f"{self.folder}/info/link")).symlink_target, path)

    async def check_directories(self, sandbox):
        files = sandbox.files
        root = f"{self.folder}/list"
        self.assertIs(await files.make_dir(f"{root}/a/b"), True)
        self.assertIs(await files.make_dir(f"{root}/a/b"), False)
        await files.write(f"{root}/a/b/c", "x")
        await files.write(f"{root}/z", "x")

        async def names(**options):
            return [each.path[len(root) + 1:] for each in await files.list(root, **options)]

        self.assertEqual(await names(), ["a", "z"])
        self.assertEqual(await names(depth=3), ["a", "a/b", "a/b/c", "z"])
        self.assertEqual((await files.rename(f"{root}/a", f"{root}/m")).path, f"{root}/m")
        self.assertEqual(await files.read(f"{root}/m/b/c"), "x")
        self.assertIs(await files.exists(f"{root}/a"), False)
        await files.remove(f"{root}/m")
        self.assertEqual(await names(), ["z"])
        await files.remove(f"{root}/m")

    async def open_watch(self, sandbox, path, **options):
        """(handle, until(*wanted)): events are asked for, or come by a callback."""
        told = []

        def tell(event):
            told.append((event.type.value, event.name))
            entry = getattr(event, "entry", None)
            if entry:
                self.assertEqual(entry.path, f"{path}/{event.name}")

        if self.client == "async":
            handle = await sandbox.files.watch_dir(path, tell, **options)

            async def until(*wanted):
                await self.until(lambda: f"{wanted} in {told}", lambda: set(wanted) <= set(told))
        else:
            handle = await sandbox.files.watch_dir(path, **options)

            async def until(*wanted):
                def look():
                    for event in handle._target.get_new_events():
                        tell(event)
                    return set(wanted) <= set(told)
                eventually(lambda: f"{wanted} in {told}", look)
        return handle, until

    async def check_watch(self, sandbox):
        files = sandbox.files
        watched = f"{self.folder}/watched"
        await files.make_dir(f"{watched}/old")
        handle, until = await self.open_watch(sandbox, watched)
        await files.write(f"{watched}/f", "one")
        await until(("create", "f"), ("write", "f"))
        await files.rename(f"{watched}/f", f"{watched}/g")
        await files.remove(f"{watched}/g")
        await until(("rename", "f"), ("create", "g"), ("remove", "g"))
        if self.client == "sync":
            # One poll right after a write has all of it (case 190).
            for i in range(20):
                await files.write(f"{watched}/new-{i}", "one")
                told = {(event.type.value, event.name) for event in await handle.get_new_events()}
                self.assertLessEqual({("create", f"new-{i}"), ("write", f"new-{i}")}, told)
        await handle.stop()
        if self.client == "sync":
            await self.fails(e2b.SandboxException, handle.get_new_events())
        handle, until = await self.open_watch(sandbox, watched, recursive=True, include_entry=True, allow_network_mounts=True)
        await files.write(f"{watched}/new/deep/f", "x")
        await until(("create", "new"), ("create", "new/deep"), ("create", "new/deep/f"))
        await handle.stop()
        for path, kind in ((f"{self.folder}/not-there", e2b.NotFoundException), ("/etc/passwd", e2b.InvalidArgumentException)):
            await self.fails(kind, self.open_watch(sandbox, path))

    async def check_big_file(self, sandbox):
        data = os.urandom(5000000)
        await sandbox.files.write(f"{self.folder}/big", data)
        self.assertEqual(bytes(await sandbox.files.read(f"{self.folder}/big", format="bytes")), data)

    async def check_files_by_url(self, sandbox):
        path = f"{self.folder}/by URL & more.txt"
        await sandbox.files.write(path, "content")

        def fetch(url, body=None):
            headers = {"Content-Type": "multipart/form-data; boundary=edge"} if body else {}
            try:
                with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=ANSWER_S) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        if self.road == "shared":
            # With a base URL for everything, a URL says nothing of the sandbox: only one's own host name does.
            self.assertEqual(fetch(sandbox.download_url(path))[0], 400)
            return
        options = {"use_signature_expiration": 60} if self.way.is_secure else {}
        self.assertEqual(fetch(sandbox.download_url(path, **options)), (200, b"content"))
        part = b'--edge\r\nContent-Disposition: form-data; name="file"\r\n\r\nsent\r\n--edge--\r\n'
        self.assertEqual(fetch(sandbox.upload_url(path, **options), part)[0], 200)
        self.assertEqual(await sandbox.files.read(path), "sent")
        if self.way.is_secure:
            late = fetch(sandbox.download_url(path, use_signature_expiration=-1))
            self.assertEqual((late[0], json.loads(late[1])), (401, {"code": 401, "message": "signature is already expired"}))
            other = re.sub("path=[^&]*", "path=%2Fetc%2Fpasswd", sandbox.download_url(path))
            self.assertEqual(fetch(other)[0], 401)

    # the rest

    async def check_git(self, sandbox):
        git, files = sandbox.git, sandbox.files
        work, bare, clone = (f"{self.folder}/git/{name}" for name in ("work", "bare.git", "clone"))
        await git.init(bare, bare=True, initial_branch="main")
        await git.init(work, initial_branch="main")
        await git.configure_user("Ann O'Neil", "ann@example.com", scope="local", path=work)
        self.assertEqual(await git.get_config("user.name", scope="local", path=work), "Ann O'Neil")
        await files.write(f"{work}/a-file", "one\n")
        status = await git.status(work)
        self.assertEqual([(each.name, each.status) for each in status.file_status], [("a-file", "untracked")])
        await git.add(work)
        await git.commit(work, "The first: \"it's\" $HOME")
        await git.create_branch(work, "side")
        await git.checkout_branch(work, "main")
        await git.delete_branch(work, "side")
        self.assertEqual((await git.branches(work)).branches, ["main"])
        await git.remote_add(work, "origin", bare)
        await git.push(work, remote="origin", branch="main")
        await git.clone(f"file://{bare}", path=clone)
        self.assertEqual(await files.read(f"{clone}/a-file"), "one\n")

    async def check_running_and_host_names(self, sandbox):
        self.assertIs(await sandbox.is_running(), True)
        expected = f"3000-sbx1.sbx.localhost:{self.way.tls_port}" if self.way.is_secure else "localhost:3000"
        self.assertEqual(sandbox.get_host(3000), expected)

    async def check_zy_http2_was_spoken(self, sandbox):
        if self.way.is_secure:
            self.assertGreater(metric(self.way.proxy, "proxy_http2_requests_total"), 0)

    async def check_zz_nothing_is_left(self, sandbox):
        await sandbox.files.remove(self.folder)
        end = self.loop.time() + 20
        asked = 0
        while listed := await sandbox.commands.list():
            asked += 1
            if self.loop.time() > end and asked >= ASKED_AT_LEAST:
                raise late(f"no process is listed: {listed}", 20)
            await asyncio.sleep(0.01)

    async def check_zzz_a_sandbox_that_its_host_removes_under_a_command(self, sandbox):
        if self.road != "domain":
            return
        command = await sandbox.commands.run("echo up; exec sleep 300", background=True)
        removal = urllib.request.Request(f"{self.way.proxy.admin}/sandboxes/{SANDBOX}", method="DELETE")
        with urllib.request.urlopen(removal, timeout=ANSWER_S) as answer:
            self.assertLess(answer.status, 300)
        error = await self.fails(e2b.TimeoutException, command.wait())
        self.assertIn("killed", str(error))
        self.assertIs(await sandbox.is_running(), False)
