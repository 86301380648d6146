# `make serve` and `make test` are all that is needed; `make help` lists the rest.
# The first of these that is installed.
FOUND := $(foreach name,python3.11 python3.12 python3.13,$(shell command -v $(name) 2>/dev/null))
PYTHON ?= $(or $(firstword $(FOUND)),python3.11)
VENV ?= .venv
MODEL ?=
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve test test-long conformance setup setup-tests bench clean interpreter

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | while IFS='|' read -r name text; do \
	  printf '%-16s %s\n' "$$name" "$$text"; done

serve: setup ## Serve a model: make serve [MODEL=path-or-name] [ARGS='--port 8001 ...']
	@$(VENV)/bin/systolic serve $(MODEL) $(ARGS)

test: setup-tests ## Run the tests
	@$(VENV)/bin/python -m pytest -n 2 --dist loadscope $(ARGS)

test-long: setup-tests ## Run the tests that take minutes
	@$(VENV)/bin/python -m pytest -m long $(ARGS)

conformance: setup-tests ## Run PyTorch's own operator tests on the device and write docs/support/operators.md
	@$(VENV)/bin/python tests/conformance/sweep.py $(ARGS)

setup: interpreter ## Set up the virtual environment
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV)

setup-tests: interpreter
	@$(PYTHON) scripts/bootstrap.py --venv $(VENV) --tests

bench: setup ## Run a benchmark: make bench [ARGS=benchmarks/serve.py]
	@$(VENV)/bin/python $(or $(ARGS),benchmarks/serve.py)

clean: ## Remove the virtual environment and what was built
	rm -rf $(VENV) $(VENV).lock build src/*.egg-info
	find src -name '*.so' -delete

interpreter:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "$(PYTHON) is not installed: install Python 3.11" \
	  "(Debian: apt-get install python3.11 python3.11-venv python3.11-dev), or set PYTHON=" >&2; exit 1; }
