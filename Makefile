# Every target sets up what it needs, also the first time.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
CLIENTS := $(addsuffix /.ready,$(addprefix $(BENCH)-redis/,7 7-hiredis 8 8-hiredis))
REFERENCE := .venv-bench-reference
OLD := $(addprefix .venv-old/,0.1.0 0.5.0 0.8.1 0.10.3 0.14.0)
DOCS := .venv-docs
AWS := .venv-aws
RELEASE := .venv-release
INFRA := .venv-infra
PIP := pip install --quiet --disable-pip-version-check

# What is imported is compiled then, once for all processes. Most of what is installed is never imported.
export PIP_COMPILE := 0
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-fast attack test-reference test-pythons check lint types layers bench plots picture docs environments clean

demo: $(VENV)/.runtime
	$(VENV)/bin/zae-limiter demo

# Both runs take place, also if the first has failures; it is a failure if either has.
test: $(VENV)/.dev $(AWS)/.ready
	status=0; \
	$(VENV)/bin/python -m pytest -m "not alone and not reference" --numprocesses=3 --dist=loadfile --no-loadscope-reorder || status=$$?; \
	$(VENV)/bin/python -m pytest -m alone $$(grep -rl --include='*.py' 'mark\.alone' tests) || status=$$?; \
	exit $$status

# Between two edits: memory and SQLite only, and few examples of each law.
FAST := core records limiter repository runtime sync telemetry kv stores/memory stores/sqlite \
	laws/test_laws.py laws/test_conformance.py laws/test_stories.py laws/test_broken_stores.py laws/test_broken_ranges.py \
	test_architecture.py test_doctests.py test_logging.py test_smoke.py

test-fast: $(VENV)/.dev
	$(VENV)/bin/python -m pytest -m "not alone" -k "not redis and not dynamodb" --hypothesis-profile=fast --numprocesses=2 \
		$(addprefix tests/,$(FAST))

# The generated attacks with 10,000 requests for each framework, server and store, instead of 500.
attack: $(VENV)/.dev
	ZAE_ATTACK_REQUESTS=10000 $(VENV)/bin/python -m pytest -m attack --numprocesses=2 $$(grep -rl --include='*.py' 'mark\.attack' tests)

# Beside version 0.17 and older ones, each in an environment of its own.
test-reference: $(VENV)/.dev $(REFERENCE)/.ready $(addsuffix /.ready,$(OLD)) $(AWS)/.ready
	$(VENV)/bin/python -m pytest -m reference tests/reference

# On each newer Python that is found; what is not found is said.
test-pythons:
	$(PYTHON) -m tests.support.interpreters

check: lint types layers

lint: $(VENV)/.dev
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy

layers: $(VENV)/.dev
	$(VENV)/bin/python -m pytest tests/test_architecture.py

# Some rivals need a newer Python, which is looked for, or named: make bench PYTHON312=/usr/bin/python3.12
bench: $(BENCH)/.ready $(REFERENCE)/.ready $(AWS)/.ready $(CLIENTS)
	$(BENCH)/bin/python -m bench

plots: $(BENCH)/.ready
	$(BENCH)/bin/python -m bench.laws

picture: $(VENV)/.runtime
	$(VENV)/bin/python -m docs_hooks.demo_picture

docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

# What `check`, `test` and `docs` install; with --jobs side by side.
environments: $(VENV)/.dev $(AWS)/.ready $(DOCS)/.ready

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml | $(VENV)/bin/pip
	$(VENV)/bin/$(PIP) -e .
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/pip
	$(VENV)/bin/$(PIP) -e ".[dev]"
	touch $(VENV)/.runtime $@

# The local AWS of the tests pins libraries that the product must not be pinned to.
$(AWS)/.ready: tests/aws/requirements.txt
	$(PYTHON) -m venv $(AWS)
	$(AWS)/bin/$(PIP) -r tests/aws/requirements.txt
	touch $@

# The rivals live in an environment of their own: nothing of them can reach the product.
$(BENCH)/.ready: pyproject.toml bench/requirements.txt
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/$(PIP) -e ".[dynamodb,redis,local]" -r bench/requirements.txt
	touch $@

# Other versions of redis-py come before that of the benchmark's environment.
$(BENCH)-redis/7/.ready: PACKAGES := "redis==7.*"
$(BENCH)-redis/7-hiredis/.ready: PACKAGES := "redis==7.*" hiredis
$(BENCH)-redis/8/.ready: PACKAGES := "redis==8.*"
$(BENCH)-redis/8-hiredis/.ready: PACKAGES := "redis==8.*" hiredis
$(CLIENTS): $(BENCH)/.ready
	rm -rf $(@D)
	$(BENCH)/bin/$(PIP) --target $(@D) $(PACKAGES)
	touch $@

$(REFERENCE)/.ready: bench/reference.txt
	$(PYTHON) -m venv $(REFERENCE)
	$(REFERENCE)/bin/$(PIP) -r bench/reference.txt
	touch $@

# Their own templates of the table are read with PyYAML.
$(addsuffix /.ready,$(OLD)): .venv-old/%/.ready:
	$(PYTHON) -m venv .venv-old/$*
	.venv-old/$*/bin/$(PIP) zae-limiter==$* pyyaml
	touch $@

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/$(PIP) -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) .venv-py3* $(AWS) $(BENCH) $(BENCH)-* $(REFERENCE) .venv-old $(DOCS) $(RELEASE) $(INFRA) site dist htmlcov .coverage* .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: coverage types-public release-check

# Which lines no test runs: a table, and the pages in htmlcov.
coverage: $(VENV)/.coverage $(AWS)/.ready
	$(VENV)/bin/python -m pytest -m "not alone and not reference" --numprocesses=3 --dist=loadfile --no-loadscope-reorder \
		--cov --cov-report=term --cov-report=html

# Whether the types of the public API are complete for other type checkers as well.
types-public: $(RELEASE)/.ready
	$(RELEASE)/bin/python -m tools.public_types $(RELEASE)/bin/pyright

# Build, check and try what would be released; with TAG=v1.0.0 as that tag.
release-check: $(RELEASE)/.ready
	$(RELEASE)/bin/python -m tools.release_check $(TAG)

.PHONY: lint-template

# The template by checkov, whose exceptions are in infra/checkov.yaml; the CDK stack and the Terraform module made of it.
lint-template: $(INFRA)/.ready
	$(INFRA)/bin/cfn-lint --include-checks I --template src/zae_limiter/aws/template.yaml
	$(INFRA)/bin/checkov --config-file infra/checkov.yaml
	$(INFRA)/bin/python -m infra.check

$(INFRA)/.ready: pyproject.toml infra/requirements.txt
	$(PYTHON) -m venv $(INFRA)
	$(INFRA)/bin/$(PIP) -e . -r infra/requirements.txt
	touch $@

$(VENV)/.coverage: $(VENV)/.dev
	$(VENV)/bin/$(PIP) -e ".[coverage]"
	touch $@

$(RELEASE)/.ready: pyproject.toml
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/$(PIP) -e ".[release]"
	touch $@
