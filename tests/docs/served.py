"""The command line, served: a parent that has imported redrive forks each command, a fifth of what a process costs.

A client sends how it was called, its folder, its environment and its three streams, which the command has as its own.
The client passes signals on to it, and ends with its code. Single-threaded, opens no store, reads nothing. Ends with
its stdin, and all that it forked with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from redrive.cli import COMMANDS, main, program
from redrive.cli.program import load

# What redrive imports where it is needed, each command would import again.
LATER = ("redrive.runner.embed", "redrive.runner.process", "redrive.store.sqlite")
REQUEST_MAX = 100_000  # bytes; a message is sent as a whole

CLIENT = """\
#!{python} -IS
import json, os, signal, socket, sys
served = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
served.connect({place!r})
request = json.dumps([sys.argv, os.getcwd(), dict(os.environ)])
socket.send_fds(served, [request.encode()], [0, 1, 2])
pid = int(served.recv(99))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
sys.exit(int(served.recv(99)))
"""


def serve(address: str) -> None:
    """Until stdin ends."""
    program.confirm = answer_for_somebody(program.confirm)  # before others import it by its name
    for module in {place.partition(":")[0] for place, _ in COMMANDS.values()}:
        importlib.import_module(f"redrive.cli.{module}")
    for name in LATER:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # the children's collectors leave the shared pages alone
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(100)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin not in select.select([sys.stdin, listener], [], [])[0]:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            attend(client)
            return
        client.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os.killpg(0, signal.SIGKILL)


def attend(client: socket.socket) -> None:
    """Fork the command, and tell its client how it ended."""
    message, streams, _, _ = socket.recv_fds(client, REQUEST_MAX, 3)
    words, folder, environment = json.loads(message)
    pid = os.fork()
    if pid == 0:
        client.close()
        become(words, folder, environment, streams)
        return
    client.send(b"%d" % pid)
    _, status = os.waitpid(pid, 0)
    client.send(b"%d" % (os.waitstatus_to_exitcode(status) % 256))
    os._exit(0)


def become(words: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """The process that the client asked for; it ends as any other does."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    if Path(words[0]).name == "service":  # nobody is there to type
        main()
    type_redrive()


def answer_for_somebody(confirm: Callable[[str, bool], None]) -> Callable[[str, bool], None]:
    """Where somebody says yes, there is no terminal to say it on."""

    def answer(question: str, yes: bool) -> None:
        if os.environ.get("SOMEBODY_SAYS_YES"):
            sys.stdout.write(f"{question} y\n")
        else:
            confirm(question, yes)

    return answer


def type_redrive() -> None:
    """`redrive run` without --until-idle runs for ever: somebody presses Ctrl-C when no retry is due any more."""
    if sys.argv[1:2] == ["events"] and "--follow" in sys.argv:
        follower = subprocess.Popen(
            [sys.executable, "-m", "redrive.cli", *sys.argv[1:]], stdout=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        sys.stdout.write(follower.stdout.readline())
        follower.send_signal(signal.SIGINT)
        sys.exit(follower.wait())
    if sys.argv[1:2] != ["run"] or "--until-idle" in sys.argv:
        main()
    while True:
        subprocess.run([sys.executable, "-m", "redrive.cli", *sys.argv[1:], "--until-idle"], check=True)
        letters = load(sys.argv[2]).operate().letters.list("retrying", limit=1000)
        if not any(letter.reason == "failing" and letter.due_at < time.time() + 3600 for letter in letters):
            break


if __name__ == "__main__":
    serve(sys.argv[1])
