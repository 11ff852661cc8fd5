# Two commands do everything on a fresh machine with Python 3.11+, pip and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO := demo

.PHONY: demo test faults mutants lint types unit install develop clean

install: $(VENV)/installed

develop: $(VENV)/developing

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "creating $(VENV) (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip
	@$(PIP) torch
	@$(PIP) --editable '.[all]'
	@touch $@

$(VENV)/developing: $(VENV)/installed
	@$(PIP) --editable '.[dev,procgen,sb3,cluster,onnx,hub,tune,minari,wandb,mlflow,trackio]'
	@touch $@

demo: $(VENV)/installed
	@$(BIN)/steadyq demo --out $(DEMO)

test: lint types unit

faults: $(VENV)/developing
	$(BIN)/python -m tests.faults $(FAULTS)

mutants: $(VENV)/developing
	$(BIN)/python tests/mutants.py $(MUTANTS)

lint: $(VENV)/developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/developing
	$(BIN)/mypy

unit: $(VENV)/developing
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) $(DEMO) runs build
