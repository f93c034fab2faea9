"""`python -m tests.install`, or `make test-install`: what the README says, as a stranger does it.

For each Python of this machine, each build of torch, and the newest and the oldest packages that `pyproject.toml`
allows: an empty folder, the README's install, word for word, with a wheel in place of the checkout, and no constraints;
then its commands and its Python, `essp demo` and the examples. Nothing of the tests' environment takes part.

It downloads gigabytes and takes some minutes for each combination: for the night, and before a release.
"""
