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
IMAGE := localhost/drabridge:test
PACKAGES := tests/debian-packages.txt
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' drabridge/__init__.py)
unexport PYTHONDONTWRITEBYTECODE  # tests start the agent hundreds of times; compiling it takes 0.2 s each time

.PHONY: help demo test lint unit slow deep lowest cluster cluster-all image kind lab gpu bench soak docs picture generated release upload publish push protos \
	system clean

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

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

slow: $(VENV)/.dev system  ## what CI runs besides: image, release, site, page in a browser, demo, larger searches of the ledger
	$(BIN)/python -m pytest $(WORKERS) -m slow $(PYTEST_ARGS) $$(grep -rlw 'mark\.slow' tests --include='test_*.py')

deep: $(VENV)/.dev system  ## the tests that take minutes each: the ledger's largest searches, a soak, scenarios on the simulated cluster
	$(BIN)/python -m pytest $(WORKERS) -m deep $(PYTEST_ARGS)
	$(BIN)/python -m pytest $(WORKERS) -m "hypothesis and not deep" --hypothesis-profile=many $(PYTEST_ARGS) \
	  $$(grep -rlw hypothesis tests --include='test_*.py')

lowest: $(VENV)/.lowest  ## the wire's, both libraries' and the core's tests again, with the oldest packages allowed
	$(VENV)/lowest/bin/python -m pytest -q -p no:cacheprovider $(WORKERS) $(addprefix tests/,wire podresources \
		deviceplugin config offers $(addprefix inventory/test_,udev_device.py topology.py \
		attribute_values.py events.py snapshots.py) ledger/test_store.py ledger/test_store_writer.py \
		ledger/test_service.py ledger/test_clock_stamps.py)

cluster: $(VENV)/.dev system  ## the cluster tests on KUBECONFIG's cluster, else on real nodes, which it makes: RELEASE=1.34 NODES=3
	$(BIN)/python -m tests.cluster $(if $(RELEASE),--release $(RELEASE)) $(if $(NODES),--nodes $(NODES)) $(CLUSTER_ARGS)

cluster-all: $(VENV)/.dev system  ## the cluster tests on real nodes of every release, kept for docs/compatibility.md
	$(BIN)/python -m tests.cluster --release all --keep $(if $(NODES),--nodes $(NODES)) $(CLUSTER_ARGS)

image:  ## the agent's image, in podman's store and as build/image.tar, which docker, kind and k3s load
	podman build $(IMAGE_ARGS) -f deploy/image/Containerfile -t $(IMAGE) .
	@mkdir -p build && rm -f build/image.tar
	podman save -q --format docker-archive -o build/image.tar $(IMAGE)

kind: image  ## the cluster tests on a cluster that kind makes, and that stays: kind delete cluster
	kind create cluster --kubeconfig build/kind.kubeconfig
	kind load image-archive build/image.tar
	KUBECONFIG=$(CURDIR)/build/kind.kubeconfig DRABRIDGE_TEST_IMAGE=$(IMAGE) DRABRIDGE_TEST_BUSYBOX=busybox:stable \
	  $(MAKE) cluster

lab: PACKAGES += tests/lab/debian-packages.txt
lab: $(VENV)/.dev system  ## the tests on a virtual machine with disks, USB and serial devices, virtual functions, CAN, sound
	$(BIN)/python -m tests.lab $(LAB_ARGS)

gpu: $(VENV)/.dev system  ## as root on a machine with an NVIDIA driver: a real node, limits, claims, faults, step by step: GPU_ARGS=--stand-in
	$(BIN)/python -m tests.gpu run $(GPU_ARGS)

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

release: $(VENV)/.dev  ## what is committed, built twice, in dist/, signed: make release KEY=release.key REGISTRY=ghcr.io/me
	$(BIN)/python -m deploy.release $(if $(KEY),--key $(KEY)) $(if $(REGISTRY),--registry $(REGISTRY)) $(RELEASE_ARGS)

upload:  ## dist/ to GitHub as the release of the tag vVERSION; a draft while nothing in it is signed
	gh release create v$(VERSION) dist/* --verify-tag --title $(VERSION) \
	  --notes-file dist/drabridge-$(VERSION)-note.md $(if $(wildcard dist/cosign.pub),,--draft)

publish: $(VENV)/.dev  ## the three wheels and the sdist in dist/ to PyPI, with the token in TWINE_PASSWORD
	$(BIN)/pip install -q "twine>=6.1"
	$(BIN)/twine upload --non-interactive -u __token__ \
	  $(patsubst %,dist/%-$(VERSION)-py3-none-any.whl,$(LIBRARIES) drabridge) dist/drabridge-$(VERSION).tar.gz

push: $(VENV)/.dev  ## image (of both architectures) and chart in dist/ to REGISTRY; logs in with REGISTRY_USER and _PASSWORD
	$(BIN)/python -m deploy.release.push dist $(if $(REGISTRY),--registry $(REGISTRY)) $(PUSH_ARGS)

protos: $(VENV)/.dev  ## generate the stubs again after a change under proto/
	$(BIN)/python hatch_build.py

# Debian's packages for the tests on real devices, containers and virtual machines; without root those tests skip and
# say why. A kubectl that is there already stays: two packages with one would be in each other's way.
system:
	@if [ "$$(id -u)" != 0 ]; then \
	  echo "not root: tests on udevd, loop devices and podman will be skipped."; \
	  echo "to run them: sudo make test (installs Debian's $$(cat $(PACKAGES) | tr '\n' ' '))"; \
	elif command -v apt-get >/dev/null; then \
	  missing=$$(for p in $$(cat $(PACKAGES)); do dpkg -s $$p >/dev/null 2>&1 || echo $$p; done); \
	  if command -v kubectl >/dev/null; then missing=$${missing/kubernetes-client/}; fi; \
	  [ -z "$$missing" ] || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; }; \
	fi

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("drabridge needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

LIBRARIES := podresources deviceplugin

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml hatch_build.py $(shell find proto -name '*.proto')
	$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/.demo: $(VENV)/.installed
	$(BIN)/pip install -q -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/pip install -q "pip>=25.1"
	$(BIN)/pip install -q --group dev
	$(BIN)/pip install -q --no-build-isolation --no-deps $(addprefix -e ./,$(LIBRARIES))
	@touch $@

$(VENV)/.lowest: pyproject.toml $(LIBRARIES:=/pyproject.toml) tests/lowest.txt $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/lowest
	rm -rf $(VENV)/dist && $(BIN)/python -m build --sdist --outdir $(VENV)/dist . >/dev/null
	$(BIN)/pip wheel -q --no-build-isolation --no-deps -w $(VENV)/dist $(addprefix ./,$(LIBRARIES))
	$(VENV)/lowest/bin/pip install -q -c tests/lowest.txt -f $(VENV)/dist $(VENV)/dist/*.tar.gz pytest pytest-asyncio pytest-xdist hypothesis jsonschema promql-parser
	cd / && $(CURDIR)/$(VENV)/lowest/bin/drabridge version
	$(VENV)/lowest/bin/pip uninstall -q -y drabridge $(LIBRARIES)
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
