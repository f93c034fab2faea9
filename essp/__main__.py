"""`essp`, and `python -m essp` for an interpreter whose scripts are not on the path."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command. Ctrl-C leaves no traceback while its modules are being loaded, either."""
    _read_names_as_utf8()
    try:
        from essp.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


def _read_names_as_utf8() -> None:
    """Start anew in Python's UTF-8 mode where the locale has another encoding, as LC_ALL=C with PYTHONUTF8=0: names of
    files are UTF-8 on every machine, and Python would take each letter with an accent for damage. What is printed keeps
    the encoding of the locale, unless that is ASCII, which has no letters for such names."""
    if sys.getfilesystemencoding() == "utf-8" or os.environ.get("PYTHONUTF8") == "1":
        return
    os.environ["PYTHONUTF8"] = "1"
    printed = getattr(sys.stdout, "encoding", "ascii")
    if not "é".encode(printed, "ignore"):
        printed = "utf-8"
    os.environ.setdefault("PYTHONIOENCODING", printed)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
