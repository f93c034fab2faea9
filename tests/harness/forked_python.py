"""The `python` of a test worker: asks the preloaded process for a fork that runs the code, and waits until it ends.

`pytest-xdist` starts it like Python: with code to execute, and with stdin and stdout to talk over. It imports only the
standard library, since starting fast is its purpose. `launcher.py` is the other side.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Arguments are those of Python: `-u [-B] -c CODE`. The folder of the preloaded process comes first."""
    folder, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker hears it
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
        channel.connect(os.path.join(folder, "worker"))
        request = json.dumps([arguments, dict(os.environ), os.getcwd()])
        socket.send_fds(channel, [request.encode()], [0, 1, 2])
        channel.recv(1)


main()
