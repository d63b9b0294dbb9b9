"""`sandbox exec -t`: the terminal it is used from is as it was, whichever way it ends."""

import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import unittest

from support.programs import eventually, main, start_envd


def become_session_with_terminal():
    # Ignored in what a script starts in the background, or nohup.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Here:
    """A terminal with `sandbox exec -t ...` in it."""

    def __init__(self, envd, *command, rows=24, columns=80):
        self.master, slave = pty.openpty()
        self.size(rows, columns)
        self.before = termios.tcgetattr(self.master)
        self.child = subprocess.Popen([os.environ["SANDBOX_BIN"], "exec", "-t", *command], stdin=slave, stdout=slave,
                                      stderr=slave, env={"PATH": os.environ["PATH"], "ENVD_URL": envd.url},
                                      preexec_fn=become_session_with_terminal)
        self.slave = slave  # kept, so that what was written can be read after the end
        os.set_blocking(self.master, False)
        self.seen = ""

    def size(self, rows, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def sees(self, pattern):
        def look():
            try:
                self.seen += os.read(self.master, 65536).decode()
            except BlockingIOError:
                pass
            return re.search(pattern, self.seen)
        return eventually(lambda: f"{pattern} is printed: {self.seen!r}, exit code {self.child.poll()}", look)

    def type(self, keys):
        os.write(self.master, keys.encode())

    def is_raw(self):
        return not termios.tcgetattr(self.master)[3] & termios.ICANON

    def is_restored(self):
        return termios.tcgetattr(self.master) == self.before

    def ends(self):
        code = self.child.wait(40)
        return 128 - code if code < 0 else code

    def close(self):
        self.child.kill()
        self.child.wait()
        os.close(self.master)
        os.close(self.slave)


def is_running(mark):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
                if mark.encode() in words and b"exec" not in words:
                    return int(pid)
        except OSError:
            pass
    return None


class Terminal(unittest.TestCase):
    label = "sandbox exec -t"

    @classmethod
    def setUpClass(cls):
        cls.envd = start_envd()

    @classmethod
    def tearDownClass(cls):
        cls.envd.stop()

    def start(self, *command, envd=None, **more):
        here = Here(envd or self.envd, *command, **more)
        self.addCleanup(here.close)
        return here

    def test_it_is_raw_meanwhile_and_restored_at_the_end(self):
        here = self.start("sh", "-c", "echo ready; read line; echo \"got $line\"; exit 5")
        here.sees("ready")
        self.assertTrue(here.is_raw())
        here.type("abc\r")
        here.sees("got abc")
        self.assertEqual(here.ends(), 5)
        self.assertTrue(here.is_restored())

    def test_signals_from_outside_end_both_sides(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            mark = f"9{os.getpid()}{int(number)}"
            here = self.start("sh", "-c", f"trap '' TERM HUP; echo ready; while :; do sleep {mark}; done")
            here.sees("ready")
            eventually("it sleeps", lambda: is_running(mark))
            here.child.send_signal(number)
            self.assertEqual(here.ends(), 137, number)
            self.assertTrue(here.is_restored(), number)
            eventually("nothing is left of it", lambda: not is_running(mark))

    def test_quit_leaves_the_command_running(self):
        mark = f"9{os.getpid()}3"
        here = self.start("sh", "-c", f"echo ready; sleep {mark}; true")
        here.sees("ready")
        here.child.send_signal(signal.SIGQUIT)
        self.assertEqual(here.ends(), 131)
        self.assertTrue(here.is_restored())
        here.sees("may still run")
        os.kill(eventually("it runs", lambda: is_running(mark)), signal.SIGKILL)

    def test_a_lost_connection(self):
        envd = start_envd()
        here = self.start("sh", "-c", "echo ready; sleep 100", envd=envd)
        here.sees("ready")
        envd.kill()
        self.assertEqual(here.ends(), 255)
        self.assertTrue(here.is_restored())
        here.sees("sandbox: unavailable: ")

    def test_it_is_suspended_and_continued(self):
        here = self.start("sh", "-c", "echo ready; until [ \"$(stty size)\" = '44 102' ]; do sleep 0.05; done; "
                          "echo resized; read line; echo \"got $line\"", rows=33, columns=101)
        here.sees("ready")
        for number in (signal.SIGTSTP, signal.SIGSTOP):
            here.child.send_signal(number)
            os.waitid(os.P_PID, here.child.pid, os.WSTOPPED)
            if number == signal.SIGTSTP:
                self.assertTrue(here.is_restored())
            # What a shell does while it has the terminal.
            termios.tcsetattr(here.master, termios.TCSANOW, here.before)
            here.size(44, 102)
            here.child.send_signal(signal.SIGCONT)
            eventually("it is raw again", here.is_raw)
        here.sees("resized")
        here.type("abc\r")
        here.sees("got abc")
        self.assertEqual(here.ends(), 0)
        self.assertTrue(here.is_restored())

    def test_the_size_goes_along(self):
        here = self.start("sh", "-c", "trap 'stty size' WINCH; stty size; while :; do sleep 0.05; done", rows=33, columns=101)
        here.sees("33 101")
        for rows in range(34, 44):
            here.size(rows, 99)
        here.sees("43 99")
        here.child.terminate()
        here.ends()

    def test_control_keys_go_to_the_command(self):
        here = self.start("sh", "-c", "trap 'echo INT' INT; trap 'echo QUIT' QUIT; echo ready; while :; do sleep 0.05; done")
        here.sees("ready")
        here.type("\x03")
        here.sees("INT")
        here.type("\x1c")
        here.sees("QUIT")
        self.assertIsNone(here.child.poll())
        here.child.terminate()
        self.assertEqual(here.ends(), 137)

    def test_tilde_and_point_leave(self):
        mark = f"9{os.getpid()}4"
        here = self.start("sh", "-c", f"stty -echo; echo ready; while read line; do echo \"got $line.\"; done; sleep {mark}")
        here.sees("ready")
        for typed, got in (("a~.b", "a~.b"), ("~~.", "~."), ("~", "~"), ("~x", "~x")):
            for key in typed:
                here.type(key)
            here.type("\r")
            here.sees(re.escape(f"got {got}."))
        here.type("~.more")
        self.assertEqual(here.ends(), 255)
        self.assertTrue(here.is_restored())
        pid = int(here.sees(r"may still run \(pid (\d+)\)").group(1))
        os.kill(pid, signal.SIGKILL)

    def test_input_that_is_no_terminal_ends_it(self):
        result = subprocess.run([os.environ["SANDBOX_BIN"], "exec", "-t", "sh"], input=b"echo $((6 * 7)); tty\n", timeout=40,
                                stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"], "ENVD_URL": self.envd.url}, check=True)
        self.assertIn(b"42\r\n/dev/pts/", result.stdout)


class Input(unittest.TestCase):
    label = "sandbox exec -i"

    @classmethod
    def setUpClass(cls):
        cls.envd = start_envd()

    @classmethod
    def tearDownClass(cls):
        cls.envd.stop()

    def run_with(self, stdin, *command):
        return subprocess.run([os.environ["SANDBOX_BIN"], "exec", "-i", *command], stdin=stdin, timeout=40, capture_output=True,
                              env={"PATH": os.environ["PATH"], "ENVD_URL": self.envd.url}, check=False)

    def test_whatever_standard_input_is(self):
        with open("/etc/passwd", "rb") as file:
            self.assertEqual(self.run_with(file, "cat").stdout, open("/etc/passwd", "rb").read())
        self.assertEqual(self.run_with(subprocess.DEVNULL, "cat").returncode, 0)
        closed = subprocess.run(["sh", "-c", 'exec "$0" exec -i wc -c <&- 2>&1', os.environ["SANDBOX_BIN"]], timeout=40,
                                capture_output=True, env={"PATH": os.environ["PATH"], "ENVD_URL": self.envd.url}, check=False)
        self.assertEqual((closed.returncode, closed.stdout.strip()), (0, b"0"))
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.write(write_end, b"from a non-blocking pipe")
        os.close(write_end)
        with open(read_end, "rb") as file:
            self.assertEqual(self.run_with(file, "cat").stdout, b"from a non-blocking pipe")

    def test_input_that_cannot_be_read_is_told(self):
        folder = os.open("/tmp", os.O_RDONLY)
        result = self.run_with(folder, "cat")
        os.close(folder)
        self.assertEqual(result.returncode, 255)
        self.assertRegex(result.stderr, b"^sandbox: .*the input: is a directory\n$")

    def test_the_command_may_end_before_its_input(self):
        read_end, write_end = os.pipe()
        with open(read_end, "rb") as file:  # its other end stays open
            self.assertEqual(self.run_with(file, "sh", "-c", "exit 4").returncode, 4)
        os.close(write_end)

    def test_a_reader_that_leaves_something_unread_in_a_socket_has_left(self):
        ours, theirs = socket.socketpair()
        with self.assertRaises(BlockingIOError):
            while True:  # full, so that not even a part gets in
                theirs.send(b"x" * 1024, socket.MSG_DONTWAIT)
        child = subprocess.Popen([os.environ["SANDBOX_BIN"], "exec", "yes"], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE,
                                 env={"PATH": os.environ["PATH"], "ENVD_URL": self.envd.url})
        theirs.close()

        def waits():  # one of its threads, in a write: it is told of a reset there, and not of a broken pipe
            for thread in os.listdir(f"/proc/{child.pid}/task"):
                try:
                    with open(f"/proc/{child.pid}/task/{thread}/wchan", encoding="ascii") as file:
                        if "sock_alloc_send" in file.read():
                            return True
                except (FileNotFoundError, ProcessLookupError):
                    pass  # it has ended meanwhile
            return False
        eventually("it waits for its reader", waits)
        ours.close()
        _, stderr = child.communicate(timeout=40)
        self.assertEqual((child.returncode, stderr), (141, b""))


if __name__ == "__main__":
    main()
