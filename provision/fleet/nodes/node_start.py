"""What a node runs, sent as text to `python3 -I -`: unpacks our modules in memory and runs them.

It is not imported here. Its syntax is that of Python 3.0, so that an older one can say that it is
too old. `@...@` is filled in by `program`. Nothing is written on the node.
"""

import os
import sys
import zlib

MARK = "@MARK@"
PAYLOAD = "@PAYLOAD@"
TASK = "@TASK@"
OLDEST = (3, 8)


def say(text):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """The only line for us: a shell of the node may print others."""
    sys.stdout.write("\n" + MARK + text + "\n")
    sys.stdout.flush()


def run():  # type: ignore[no-untyped-def]  # noqa: ANN201
    import base64
    import importlib.abc
    import importlib.util
    import json

    sources = json.loads(zlib.decompress(base64.b64decode(PAYLOAD)).decode("utf-8"))

    class Sent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        """Finds the modules that were sent."""

        def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG002
            if name not in sources:
                return None
            return importlib.util.spec_from_loader(name, self, is_package=sources[name][0])

        def create_module(self, spec):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG002
            return None

        def exec_module(self, module):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            code = compile(sources[module.__name__][1], "<sent>/" + module.__name__, "exec")
            exec(code, module.__dict__)  # noqa: S102  our own modules

    # before what is installed there, which may be another version of us
    sys.meta_path.insert(0, Sent())
    try:
        module, name, argument = json.loads(base64.b64decode(TASK).decode("utf-8"))
        task = getattr(importlib.import_module(module), name)
        answer = {"answer": task(argument)}  # type: dict[str, object]
    except Exception as error:  # noqa: BLE001  the answer is the reason
        answer = {"error": type(error).__name__ + ": " + str(error)}
    say(json.dumps(answer))  # type: ignore[no-untyped-call]
    os._exit(0)  # a thread may still wait for a driver that hangs


if __name__ == "__main__":
    if sys.version_info < OLDEST:
        say('{"python": "%d.%d"}' % tuple(sys.version_info[:2]))  # type: ignore[no-untyped-call]  # noqa: UP031
    else:
        run()  # type: ignore[no-untyped-call]
