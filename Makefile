# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test draws faults lock sbom lint types format clean

demo: $(INSTALLED)
	rm -rf runs/demo
	$(BIN)/semimetric fit --dataset digits --labels-per-class 5 --seed 0 --threads 1 --out runs/demo

test: lint types
	$(BIN)/pytest --numprocesses 2

# Every property test with DRAWS random examples instead of a few that are the same in each run; slow.
DRAWS ?= 2000
draws: $(INSTALLED)
	SEMIMETRIC_DRAWS=$(DRAWS) $(BIN)/pytest --numprocesses 2 -m hypothesis --timeout 0

# Damaged files, files of others, full disks, second writers, kills and more; slow. FAULTS="--parts kills --seed 7" runs a part.
FAULTS ?= --out faults.json
faults: $(INSTALLED)
	PYTHONPATH=tests $(BIN)/python -m faults $(FAULTS)
	SEMIMETRIC_SLOW=1 $(BIN)/pytest --timeout 0 tests/faults tests/search/test_milvus_kill.py

# The tested versions with hashes, to commit, and a list of what is installed with licences.
lock: $(INSTALLED)
	PIP_CONFIG_FILE=/dev/null $(BIN)/pip --isolated install --dry-run --ignore-installed --quiet --report - --constraint constraints.txt '.[dev]' \
	  | $(BIN)/python tools/packages.py lock > requirements.lock

sbom: $(INSTALLED)
	$(BIN)/python tools/packages.py sbom > sbom.json

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
