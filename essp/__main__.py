"""`python -m essp`: the command, for an interpreter whose scripts are not on the path."""

from essp.cli.main import main

if __name__ == "__main__":
    main()
