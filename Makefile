# Two commands on a fresh Debian machine do everything:
#   make image GPU=v100     set-up and the main job: a proven training image
#   make test               set-up and the tests
# Everything else is `builder` (.venv/bin/builder --help).

GPU ?= v100
VENV := .venv
BUILDER := $(VENV)/bin/builder
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest

.DEFAULT_GOAL := help
.PHONY: help image images push test test-fast check format lock requirements bench clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  GPU=v100|t4|a100|l4|h100|tpu|cpu chooses the target, PUSH=1 pushes what was proven, REGISTRY=host/path names where."

image: $(VENV)/.build  ## build and prove one image: make image GPU=v100 [PUSH=1]
	@$(BUILDER) image $(GPU) $(if $(PUSH),--push) $(if $(REGISTRY),--registry $(REGISTRY))

images: $(VENV)/.build  ## build and prove every target
	@$(BUILDER) image --all $(if $(PUSH),--push) $(if $(REGISTRY),--registry $(REGISTRY))

push: $(VENV)/.build  ## push every image that has a valid receipt
	@$(BUILDER) push $(if $(REGISTRY),--registry $(REGISTRY))

test: $(VENV)/.test  ## all tests: a real engine, a real registry, real TensorFlow
	@$(PYTEST)

test-fast: $(VENV)/.test  ## the tests that need neither an engine, a network nor TensorFlow
	@$(PYTEST) -q -m "not engine and not network and not tensorflow and not slow"

check: $(VENV)/.test  ## everything that guards quality and takes seconds
	@$(PYTHON) -m ruff format --check --quiet .
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m mypy
	@$(VENV)/bin/lint-imports --no-cache
	@$(VENV)/bin/shellcheck scripts/bootstrap .ci/run
	@$(VENV)/bin/hadolint --failure-threshold info builder.Dockerfile images/*/Dockerfile images/*/base.Dockerfile
	@$(BUILDER) check
	@$(BUILDER) lock --check
	@$(BUILDER) render --check
	@$(BUILDER) --quiet cloud validate cloudbuild.yaml
	@echo "make check: all passed"

format: $(VENV)/.test  ## format and fix what can be fixed
	@$(PYTHON) -m ruff check --fix --quiet . ; $(PYTHON) -m ruff format --quiet .

lock: $(VENV)/.build  ## take the newest versions that the rules allow, for every target
	@$(BUILDER) lock --upgrade && $(BUILDER) render

requirements: $(VENV)/.build  ## lock the factory's own Python packages anew
	@$(PYTHON) scripts/lock-requirements

bench: $(VENV)/.test  ## measure us beside the alternatives, in one run
	@$(PYTHON) -m bench

clean:  ## stop the private engine, remove what was built and the environment
	@if [ -x $(BUILDER) ]; then $(BUILDER) engine stop --remove; fi
	@rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.build: requirements/build.txt scripts/bootstrap
	@scripts/bootstrap $(VENV) requirements/build.txt

$(VENV)/.test: requirements/test.txt $(VENV)/.build
	@scripts/bootstrap $(VENV) requirements/test.txt
