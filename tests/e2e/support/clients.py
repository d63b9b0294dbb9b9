"""One way to call both Python clients: what the synchronous one returns can be awaited, too, so that every check is
written once, for the asynchronous one."""


class Done:
    """A call of the synchronous client, made when it is awaited."""

    def __init__(self, call):
        self.call = call

    def __await__(self):
        return wrapped(self.call())
        yield  # a generator that has nothing to wait for


class Wrapped:
    def __init__(self, target):
        self._target = target

    def __getattr__(self, name):
        value = getattr(self._target, name)
        if name in PLAIN:
            return value
        if callable(value):
            return lambda *arguments, **options: Done(lambda: value(*arguments, **options))
        return wrapped(value)


PLAIN = ("get_host", "get_mcp_url", "download_url", "upload_url")  # synchronous in both clients


def wrapped(value):
    kind = type(value)
    has_calls = kind.__module__.startswith(("e2b.", "e2b_code_interpreter.")) and kind.__name__ in (
        "Sandbox", "Commands", "Filesystem", "Pty", "Git", "CommandHandle", "WatchHandle")
    return Wrapped(value) if has_calls else value


async def pieces(stream):
    """All pieces of what read(format="stream") returns."""
    if hasattr(stream, "__aiter__"):
        return [piece async for piece in stream]
    return list(stream)
