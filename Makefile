# Two commands do everything on a fresh Debian or Ubuntu machine, as root: `make demo` and `make test`.
PYTHON  ?= /usr/bin/python3
VENV    := .venv
BIN     := $(VENV)/bin
STOCK   ?=
ARGS    ?=
ROUNDS  ?= 200
SEED    ?= 1
SLURM   ?=
FUZZ    ?= 10000

# Test clusters mostly wait, so two files at a time serve even one core well.
JOBS    ?= 2

.PHONY: help setup plugins packages test-packages docs audit demo test test-unit test-cluster matrix torch torture lint format bench fuzz clean

help:
	@echo 'make setup         install what is missing (apt, pip) and make .venv/bin/aistation'
	@echo 'make demo          a GPU falls off the bus under a training job on a real Slurm: watch it recover'
	@echo 'make demo STOCK=1  the same without AIStation'
	@echo 'make test          all tests (unit and real Slurm); ARGS="-k name" passes options to pytest'
	@echo 'make test-unit     the tests that need no Slurm and no root'
	@echo 'make test-cluster  the tests on a real Slurm in namespaces (root)'
	@echo '                   SLURM=24.11 or 26.05: on that release, from a Debian root that is made once'
	@echo 'make matrix        the core of these on Slurm 22.05, 24.11 and 26.05, and a table; ARGS=--all: all of them'
	@echo 'make torch         the CPU build of PyTorch in .venv/torch, for examples/torch_ddp and its test'
	@echo 'make torture       random faults on a real Slurm; ROUNDS=200 SEED=1; nothing may be lost or doubled'
	@echo 'make fuzz          the fuzz tests of kernel-log and sysfs readers with 10,000 inputs each; FUZZ=100000 for more'
	@echo 'make lint          ruff, mypy --strict, shellcheck, C warnings as errors'
	@echo 'make bench         measured figures, as ratios from one run'
	@echo 'make packages      wheel, sdist, deb and rpm in dist/; ARCH=aarch64: for that one'
	@echo 'make test-packages build them, install the deb in a fresh Debian root and call it there (root)'
	@echo 'make docs          the documentation as a site, in build/docs; every link has to resolve'
	@echo 'make audit         known vulnerabilities of the dependencies (pip-audit; needs a network)'
	@echo 'make plugins       build the SPANK plugin against the Slurm found'

setup:
	@PYTHON=$(PYTHON) sh scripts/setup.sh

plugins: setup
	@$(MAKE) --no-print-directory -C slurm_plugins

demo: setup plugins
	@$(BIN)/python examples/demo/demo.py $(if $(STOCK),--stock) $(ARGS)

test: setup plugins torch
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

test-unit: setup plugins
	@$(BIN)/python -m pytest tests/unit $(ARGS)

test-cluster: setup plugins torch
	@AIS_SLURM=$(SLURM) $(BIN)/python -m pytest tests/cluster -n $(JOBS) --dist loadfile $(ARGS)

matrix: setup plugins
	@$(BIN)/python -m tests.cluster.matrix $(ARGS)

# its test is skipped, and says why, where torch cannot be installed
torch: setup
	@PYTHON=$(PYTHON) sh scripts/install-torch.sh || echo 'make: no torch here; tests/cluster/test_torchrun.py is skipped'

torture: setup plugins
	@$(BIN)/python -m tests.cluster.torture --rounds $(ROUNDS) --seed $(SEED) $(ARGS)

fuzz: setup
	@AISTATION_FUZZ=$(FUZZ) $(BIN)/python -m pytest tests/unit/probes/test_klog_filter.py tests/unit/probes/test_rdma_fuzz.py $(ARGS)

lint: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@sh scripts/shellcheck.sh

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

packages: setup
	@$(BIN)/python scripts/packages.py $(if $(ARCH),--arch=$(ARCH))

test-packages: packages
	@AIS_PACKAGES=$(CURDIR)/dist $(BIN)/python -m pytest tests/cluster/test_packages.py $(ARGS)

docs: setup
	@sh scripts/docs.sh

audit: setup
	@sh scripts/audit.sh

bench: setup plugins
	@$(BIN)/python -m tests.bench $(ARGS)

clean:
	@$(MAKE) --no-print-directory -C slurm_plugins clean
	rm -rf demo-out bench-out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
