# Every target works on a fresh clone with nothing but Python (3.11 or newer) and make.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test test-kernels lint format docs gallery clean

demo: $(VENV)/installed            ## train CartPole, then evaluate what was learned
	rm -rf runs/demo
	$(BIN)/tightrope train CartPole-v1 --run-dir runs/demo
	$(BIN)/tightrope eval runs/demo

# With bytecode, of which each process of the suite would otherwise make its own.
test: $(VENV)/installed-dev $(VENV)/browser $(VENV)/postgres ## the whole test suite
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

test-kernels: $(VENV)/installed-dev ## the Triton kernels in Triton's interpreter (300 MB more, in a folder of its own)
	$(PIP) install --no-deps --target $(VENV)/triton triton==3.7.1
	PYTHONPATH=$(VENV)/triton TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/engine/test_kernels.py tests/engine/test_env_step.py tests/engine/test_orders.py

lint: $(VENV)/installed-dev        ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev      ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-docs       ## the documentation as a site, under site/; trains and films what takes seconds
	$(BIN)/python docs/make/gallery.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

gallery: $(VENV)/installed-docs    ## the same with films of what takes minutes to train
	$(PIP) install -c constraints.txt -e ".[docs,box2d,mujoco]"
	$(BIN)/python docs/make/gallery.py --all
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:                             ## forget the virtual environment and everything built
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install -c constraints.txt -e ".[dev,docs,atari,box2d,mujoco,envpool,brax,playground]"
	@touch $@

# For the tests of the report page, which are skipped where there is no browser: never a reason to fail.
$(VENV)/browser: | $(BIN)/python
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	       && { timeout 300 apt-get install -y -qq --no-install-recommends chromium \
	            || { timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends chromium; }; } \
	       >$(VENV)/browser.log 2>&1; } \
	  || echo "note: no chromium here, so that the report is not tested in a browser"
	@touch $@

# For the test of a sweep over a database, which is skipped where there is none: never a reason to fail.
$(VENV)/postgres: | $(BIN)/python
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	       && { timeout 300 apt-get install -y -qq --no-install-recommends postgresql \
	            || { timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq --no-install-recommends postgresql; }; } \
	       >$(VENV)/postgres.log 2>&1; } \
	  || echo "note: no PostgreSQL here, so that sweeps are not tested over a database"
	@touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(PIP) install -c constraints.txt -e ".[docs]"
	@touch $@
