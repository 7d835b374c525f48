# Everything happens in a virtual environment of its own; set VENV to put it elsewhere, PYTHON to choose the
# interpreter (3.11 or newer).
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# One thread per process: spinning threads of several processes on few cores cost 10x (docs/log.md).
ENV := OMP_NUM_THREADS=1

.PHONY: setup demo test test-all bench lint clean
.DELETE_ON_ERROR:

$(VENV)/.installed: pyproject.toml tools/install_torch.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/install_torch.py
	$(BIN)/python -m pip --disable-pip-version-check install --quiet -e ".[dev]"
	touch $@

setup: $(VENV)/.installed

# Serve a checkpoint made on the spot, replay agents against it, draw the curve.
demo: setup
	$(ENV) $(BIN)/python tools/demo.py

test: setup
	$(ENV) $(BIN)/python -m pytest -m "not slow" $(PYTEST)

test-all: setup
	$(ENV) $(BIN)/python -m pytest $(PYTEST)

bench: setup
	$(BIN)/python benchmarks/engine_speed.py
	$(BIN)/python benchmarks/http_stack.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo
