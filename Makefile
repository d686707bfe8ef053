# `make demo` and `make test` need nothing but Python 3.11 or newer; the rest is installed in .venv.

PYTHON  ?= python3
WORKERS ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint format docs audit bench package clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## Create .venv and install graphveil in it, with the development tools

# Every install goes through the constraints: an unpinned torch brings gigabytes of CUDA.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
	  "graphveil needs Python 3.11 or newer, and $(PYTHON) is %d.%d: try make PYTHON=python3.12" % v[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $@

# Prints the command as one would type it, then runs it.
run = @printf '\n$$ graphveil %s\n' '$(1)'; $(BIN)/graphveil $(1)

demo: $(STAMP)  ## Train privately on a synthetic social network, show the certificate, compare methods
	$(call run,train late-graph --data social --epsilon 8 --out runs/demo --force)
	@printf '\n$$ cat runs/demo/certificate.txt\n'; cat runs/demo/certificate.txt
	$(call run,compare --data social --epsilon 8 --seeds 2)

test: lint  ## Run every check: lint, types, import rules, fast tests, statistical tests
	$(BIN)/pytest -n $(WORKERS) --dist worksteal
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m slow

lint: $(STAMP)  ## Check style, formatting, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## Rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

DOCS := $(VENV)/.docs-installed

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	@touch $@

docs: $(DOCS)  ## Build the site (warnings are errors), check its links, run all that it shows
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet
	$(BIN)/python tools/check_site.py site
	$(BIN)/python tools/run_pages.py --jobs $(WORKERS)

audit: $(STAMP)  ## Put every private method on trial on the synthetic data: replays, draws, canaries, attacks
	for method in dp-gnn late-graph gap dpar graph-split dp-mlp; do for kind in replay mechanism run attack; do \
	  $(BIN)/graphveil audit $$kind $$method --data social --out audits.json || exit 1; done; done
	for kind in replay mechanism run attack; do \
	  $(BIN)/graphveil audit $$kind graph-dpsgd --data synthetic-er --out audits.json || exit 1; done

bench: $(STAMP)  ## Measure the speed of the accounting, of a step, of capping and of a large run
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/step.py --quick
	$(BIN)/python benchmarks/caps.py
	$(BIN)/python benchmarks/arxiv_sized.py

package: $(STAMP)  ## Build wheel and sdist, and try both in empty environments, away from the checkout
	rm -rf dist && $(BIN)/python -m build --outdir dist . >/dev/null
	sh tests/try_package.sh dist/*.whl constraints.txt
	sh tests/try_package.sh dist/*.tar.gz constraints.txt

clean:  ## Remove .venv, builds and caches
	rm -rf $(VENV) build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
