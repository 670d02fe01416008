# Two commands are enough on a fresh Debian machine:
#   make image GPU=v100     set up, then build and prove a training image
#   make test               set up, then run the tests
# All other commands are those of `builder` (.venv/bin/builder --help).

GPU ?= v100
export LONG_SECONDS ?= 60
FUZZ_FIRST ?= 1
VENV := .venv
BUILDER := $(VENV)/bin/builder
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest --dist loadscope --numprocesses

VARIABLES := GPU PUSH REGISTRY LONG_SECONDS FUZZ_FIRST CLUSTER VENV
$(foreach name,$(filter-out $(VARIABLES),$(.VARIABLES)),$(if $(findstring command line,$(origin $(name))),\
    $(error $(name) is none of make's variables here; known: $(VARIABLES))))

.DEFAULT_GOAL := help
.PHONY: help image images push test test-fast test-long test-cluster check format lock requirements bench dist clean

test test-fast test-long test-cluster: export PYTHONDONTWRITEBYTECODE =  # each process would compile every test

help:  ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  GPU=v100 chooses the target: $(notdir $(patsubst %/image.yaml,%,$(wildcard images/*/image.yaml)))."
	@echo "  PUSH=1 pushes the proven image. REGISTRY=host/path names the repository."

image: $(VENV)/.build  ## build and prove one image: make image GPU=v100 [PUSH=1]
	@$(BUILDER) image $(GPU) $(if $(PUSH),--push) $(if $(REGISTRY),--registry $(REGISTRY))

images: $(VENV)/.build  ## build and prove every target
	@$(BUILDER) image --all $(if $(PUSH),--push) $(if $(REGISTRY),--registry $(REGISTRY))

push: $(VENV)/.build  ## push every image that has a valid receipt
	@$(BUILDER) push $(if $(REGISTRY),--registry $(REGISTRY))

test: $(VENV)/.test  ## run the tests, with a real engine, registry and TensorFlow
	@$(PYTEST) 4 -m "not alone and not long"
	@grep -rl --include="test_*.py" "mark.alone" tests packages | xargs -r $(PYTHON) -m pytest -m "alone and not long"

test-fast: $(VENV)/.test  ## run the tests that need no engine, network or TensorFlow
	@$(PYTEST) 2 -q -m "not engine and not network and not tensorflow and not slow and not long"

test-long: $(VENV)/.test  ## run what takes minutes: every target, campaigns of kills, a cluster (CLUSTER=0: none), fuzzing. LONG_SECONDS=60 each, FUZZ_FIRST=1
	@grep -rl --include="test_*.py" "mark.long" tests packages | grep -v $(if $(filter 0,$(CLUSTER)),^tests/cluster/,^$$) | xargs -r $(PYTHON) -m pytest -m long
	@$(PYTHON) -m tests.fuzz --first $(FUZZ_FIRST) --seconds $(LONG_SECONDS)

test-cluster: $(VENV)/.test  ## run jobs in Kubernetes: KUBECONFIG's with REGISTRY=host/path, else one made here
	@REGISTRY=$(REGISTRY) $(PYTHON) -m pytest -m long tests/cluster

check: $(VENV)/.test  ## run the quick checks: format, lint, types, imports, locks, Dockerfiles
	@$(PYTHON) -m ruff format --check --quiet .
	@$(PYTHON) -m ruff check --quiet .
	@$(PYTHON) -m mypy
	@$(VENV)/bin/lint-imports --no-cache
	@cd packages/cloudbuild-local && ../../$(VENV)/bin/lint-imports --no-cache
	@$(VENV)/bin/shellcheck tools/bootstrap .ci/run
	@$(VENV)/bin/hadolint --failure-threshold info builder.Dockerfile images/*/Dockerfile
	@$(BUILDER) check
	@$(BUILDER) lock --check
	@$(BUILDER) render --check
	@$(BUILDER) --quiet cloud validate --strict cloudbuild.yaml
	@$(PYTHON) -m pytest --quiet --no-header tests/test_house.py tests/test_docs.py tests/test_words.py tests/test_contract.py tests/prove/test_versions.py tests/frameworks/test_neutral.py
	@echo "make check: all passed"

format: $(VENV)/.test  ## format the code and apply automatic fixes
	@$(PYTHON) -m ruff check --fix --quiet . ; $(PYTHON) -m ruff format --quiet .

lock: $(VENV)/.build  ## lock every target to the newest allowed versions
	@$(BUILDER) lock --upgrade && $(BUILDER) render

requirements: $(VENV)/.build  ## lock the factory's own Python packages again
	@$(PYTHON) tools/lock-requirements

bench: $(VENV)/.test  ## compare the factory with the alternatives; takes hours
	@$(PYTHON) -m tools.bench

dist: $(VENV)/.build  ## build the wheels and source distributions of the factory and its packages
	@for folder in . packages/*/; do $(VENV)/bin/uv build --quiet --out-dir dist $$folder || exit 1; done

clean:  ## stop the private engine; remove builds and the environment
	@if [ -x $(BUILDER) ]; then $(BUILDER) engine stop --remove; fi
	@rm -rf build $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.build: requirements/build.txt tools/bootstrap
	@tools/bootstrap $(VENV) requirements/build.txt

$(VENV)/.test: requirements/test.txt $(VENV)/.build
	@tools/bootstrap $(VENV) requirements/test.txt
