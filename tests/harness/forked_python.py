"""In place of the Python of a test worker: forks one that has loaded what tests import, and waits for its end.

`pytest-xdist` runs it as it would run Python: with the code to execute, and talking over stdin and stdout. It loads
nothing of its own, which would take as long as it saves (`launcher.py` has the other side).
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
