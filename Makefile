# Two commands for a newcomer: `make demo` and `make test`. Everything they install stays in .venv, but for Debian's
# packages that `make test` needs for its tests on real udev, loop devices and containers, and for kubectl (root only).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS := -n 5 --dist loadfile --no-loadscope-reorder  # for two cores: most tests wait more than they work
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests import a small part of what is installed.
export PIP_NO_COMPILE := 1
unexport PYTHONDONTWRITEBYTECODE  # tests start the agent hundreds of times; compiling it takes 0.2 s each time

.PHONY: help demo test lint unit lowest cluster lab bench soak docs picture generated release protos system clean

help:  ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

demo: $(VENV)/.demo  ## watch a real agent serve this machine's devices to a simulated cluster
	@$(BIN)/drabridge demo

test: system lint unit lowest  ## everything: linters, types, architecture, tests, both ends of the dependency ranges

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.dev system  ## the tests
	$(BIN)/python -m pytest $(WORKERS) $(PYTEST_ARGS)

lowest: $(VENV)/.lowest  ## the wire's, both libraries' and the core's tests again, with the oldest packages allowed
	$(VENV)/lowest/bin/python -m pytest -q -p no:cacheprovider $(WORKERS) $(addprefix tests/,wire podresources \
		deviceplugin config offers $(addprefix inventory/test_,udev_device.py topology.py \
		attribute_values.py events.py tracker.py) ledger/test_store.py ledger/test_store_writer.py \
		ledger/test_service.py ledger/test_clock_stamps.py)

cluster: $(VENV)/.dev system  ## the cluster tests on the node of KUBECONFIG, else on one that ../shared/cluster/cluster starts
	$(BIN)/python -m tests.cluster $(CLUSTER_ARGS)

lab: $(VENV)/.dev  ## the tests on a virtual machine with disks, USB and serial devices, virtual functions, CAN, sound
	@[ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { missing=$$(for p in $$(cat tests/lab/debian-packages.txt); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	  [ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }; }
	$(BIN)/python -m tests.lab $(LAB_ARGS)

bench: $(VENV)/.dev  ## the numbers, against their budgets; kept in tests/bench/history.jsonl, and drawn
	$(BIN)/python -m tests.bench --keep
	$(BIN)/python -m docs.draw_benchmarks

soak: $(VENV)/.dev  ## legacy pods and claims at full load with crashes, for 10 minutes
	$(BIN)/python -m tests.soak --minutes 10 --seed 1

docs: $(VENV)/.dev  ## the documentation as a site, in build/site
	$(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml

generated: $(VENV)/.dev  ## write what is made from the code anew: pages under docs/reference, the chart's schema, kustomize
	$(BIN)/python -m docs.generate
	$(BIN)/python -m deploy.generate

picture: $(VENV)/.dev  ## record the demo again, for docs/images/demo.svg
	$(BIN)/python -m docs.record_demo

release: $(VENV)/.dev  ## what is committed, built twice, in dist/, signed: make release KEY=release.key
	$(BIN)/python -m deploy.release $(if $(KEY),--key $(KEY)) $(RELEASE_ARGS)

protos: $(VENV)/.dev  ## generate the stubs again after a change under proto/
	$(BIN)/python hatch_build.py

# Debian's packages for the tests on real devices and containers; without root those tests skip and say why. A kubectl
# that is there already stays: two packages with one would be in each other's way.
system:
	@if [ "$$(id -u)" != 0 ]; then \
	  echo "not root: tests on udevd, loop devices and podman will be skipped."; \
	  echo "to run them: sudo make test (installs Debian's $$(tr '\n' ' ' < tests/debian-packages.txt))"; \
	elif command -v apt-get >/dev/null; then \
	  missing=$$(for p in $$(cat tests/debian-packages.txt); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	  if command -v kubectl >/dev/null; then missing=$${missing/kubernetes-client/}; fi; \
	  [ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }; \
	fi

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("drabridge needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml hatch_build.py $(shell find proto -name '*.proto')
	$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -q "pip>=25.1"
	$(BIN)/pip install -q --group dev
	@touch $@

$(VENV)/.lowest: pyproject.toml tests/lowest.txt $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/lowest
	rm -rf $(VENV)/dist && $(BIN)/python -m build --sdist --outdir $(VENV)/dist . >/dev/null
	$(VENV)/lowest/bin/pip install -q -c tests/lowest.txt $(VENV)/dist/*.tar.gz pytest pytest-asyncio pytest-xdist hypothesis jsonschema promql-parser
	cd / && $(CURDIR)/$(VENV)/lowest/bin/drabridge version
	$(VENV)/lowest/bin/pip uninstall -q -y drabridge
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
