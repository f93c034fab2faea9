"""`essp`, and `python -m essp` for an interpreter whose scripts are not on the path."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command. Ctrl-C leaves no traceback while its modules are being loaded, either."""
    try:
        from essp.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
