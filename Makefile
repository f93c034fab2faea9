# The verbs of this project. `make demo` and `make test` set up everything they need.
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3

.PHONY: setup demo test soak check fix proto docs bench clean

setup: $(VENV)/.installed
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: setup  ## Make a labelled video set, train two streams on it, fuse them, predict an unseen video.
	$(BIN)/essp demo

test: setup  ## All tests; they start and stop the servers they need.
	$(BIN)/python -m pytest -n 2 --dist loadgroup

MINUTES ?= 5
SEED ?= 1
soak: setup  ## Jobs on real servers while processes are killed, drained and frozen: make soak MINUTES=5 SEED=1.
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

check: setup  ## Style, types, layers, generated code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.architecture.proto_drift
	$(BIN)/python -m tests.architecture.job_reference

fix: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: setup  ## Generate the message classes.
	$(BIN)/python -m grpc_tools.protoc -I proto --python_out=. --pyi_out=. proto/essp_common/pb/v1/messages.proto

docs: setup  ## The reference of job fields.
	$(BIN)/python -m tests.architecture.job_reference --write

bench: setup  ## Measure the hot path against its limit and its alternatives.
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build *.egg-info
