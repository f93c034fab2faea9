"""`essp`, and `python -m essp` for an interpreter whose scripts are not on the path."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command. Ctrl-C prints no traceback, even while modules are loading."""
    _read_names_as_utf8()
    try:
        from essp.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


def _read_names_as_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale has another encoding, for example LC_ALL=C with PYTHONUTF8=0.

    File names are UTF-8 on every machine, and Python would otherwise read accented letters as damaged. Output keeps the
    encoding of the locale, unless that is ASCII, which cannot represent such names.
    """
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
