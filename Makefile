# Two commands do all the set-up on a fresh machine: `make demo` (the main job, no network, no account) and
# `make test`. Each makes its own virtual environment on first use.
PYTHON ?= python3
RUN_VENV ?= .venv-run
TEST_VENV ?= .venv
# Most tests wait for sockets, so more of them than there are cores run at once.
PYTEST_ARGS ?= -n 4 --dist loadfile
MINUTES ?= 5
HOURS ?= 1
STORIES ?= 100000
SOURCES := pyproject.toml setup.py $(shell find src -name '*.py' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h')

.PHONY: demo docs test test-plain lint types coverage faults proof trace trace-28k memory bench bench-quick micro soak fuzz fuzz-short stories callgrind sanitize clean help

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(RUN_VENV)/.done  ## the same slow calls straight and through h2ping, on a simulated path
	$(RUN_VENV)/bin/h2ping demo

test: $(TEST_VENV)/.done  ## every test, over the compiled engine and the plain one
	H2PING_EXPECT_C=1 $(TEST_VENV)/bin/python -m pytest $(PYTEST_ARGS)
	$(TEST_VENV)/bin/python -m pytest -q bench/micro --benchmark-disable -k "not memory_of"

test-plain: $(TEST_VENV)/.done  ## every test again, the whole package on its plain twins
	H2PING_NO_EXTENSIONS=1 $(TEST_VENV)/bin/python -m pytest $(PYTEST_ARGS)

lint: $(TEST_VENV)/.lint  ## ruff, cython-lint, codespell
	$(TEST_VENV)/bin/ruff check .
	$(TEST_VENV)/bin/ruff format --check .
	PATH="$(CURDIR)/$(TEST_VENV)/bin:$$PATH" cython-lint src/h2ping
	$(TEST_VENV)/bin/codespell README.md CHANGELOG.md SECURITY.md docs src tests bench --skip '*.json,*.bin,tests/fuzz/corpus,*.so'

types: $(TEST_VENV)/.lint  ## mypy, strict
	$(TEST_VENV)/bin/mypy

coverage: $(TEST_VENV)/.done  ## branch coverage of the protocol modules, at least 90 %
	H2PING_NO_EXTENSIONS=1 $(TEST_VENV)/bin/python -m pytest -q -n auto --dist loadfile tests/unit tests/wire tests/property \
		--cov=h2ping --cov-branch --cov-report=
	$(TEST_VENV)/bin/python -m coverage report --fail-under=90 \
		--include='*/headers.py,*/retry.py,*/upstream/*.py,*/exchange.py,*/memory.py,*/downstream/*.py,*/_fast/*_py.py'

docs: $(TEST_VENV)/.done  ## renew what is generated from the code: docs/flags.md, docs/causes.md, the README table
	$(TEST_VENV)/bin/python -m h2ping.show .

faults: $(TEST_VENV)/.done  ## run the fault matrix and write docs/faults.md from it
	$(TEST_VENV)/bin/python -m tests.faults

proof: $(RUN_VENV)/.done  ## a 400 s silent call through a relay that cuts at 340 s, in real time
	$(RUN_VENV)/bin/h2ping lab proof

trace: $(RUN_VENV)/.done  ## 600 calls of the judge trace at 1:100, with rotation, GOAWAY and idle cuts
	$(RUN_VENV)/bin/h2ping lab trace

trace-28k: $(RUN_VENV)/.done  ## a whole run: 28,012 calls, the fast ones among them
	$(RUN_VENV)/bin/h2ping lab trace --calls 28012 --fast 16170 --rush 10000 --at-once 600 --max-conns 8

memory: $(RUN_VENV)/.done  ## 2,000 calls with 512 KiB bodies under a limit of 256 MiB
	$(RUN_VENV)/bin/h2ping lab memory

soak: $(RUN_VENV)/.done  ## MINUTES=n of judge calls while path, origin and clients break at random
	$(RUN_VENV)/bin/h2ping lab soak --minutes $(MINUTES)

callgrind: $(TEST_VENV)/.done  ## instructions of the engine's pieces, against the counts that are kept (valgrind)
	$(TEST_VENV)/bin/python -m bench.callgrind --check

sanitize: $(TEST_VENV)/.done  ## every test over a build with AddressSanitizer and UndefinedBehaviorSanitizer (clang)
	TEST_VENV=$(TEST_VENV) .ci/sanitized $(TEST_VENV)/bin/python -m pytest --only-c $(PYTEST_ARGS)

# Two targets run at a time, so five take three rounds.
fuzz: $(TEST_VENV)/.done  ## HOURS=n of coverage-guided fuzzing under sanitizers, then many examples of the property tests (clang, x86-64 Linux)
	TEST_VENV=$(TEST_VENV) .ci/sanitized $(TEST_VENV)/bin/python -m tests.fuzz \
		--seconds $$(awk 'BEGIN { print $(HOURS) * 3600 / 3 }')
	HYPOTHESIS_PROFILE=fuzz $(TEST_VENV)/bin/python -m pytest -q -o timeout=0 tests/property

fuzz-short: $(TEST_VENV)/.done  ## a minute of it for each target
	TEST_VENV=$(TEST_VENV) .ci/sanitized $(TEST_VENV)/bin/python -m tests.fuzz --seconds 60

stories: $(TEST_VENV)/.done  ## STORIES=n random frame scripts, told to both engines: the same events and frames
	H2PING_STORIES=$(STORIES) $(TEST_VENV)/bin/python -m pytest -q -n auto -o timeout=0 tests/property/test_engines_agree.py

bench: $(TEST_VENV)/.done peers  ## against Go, Envoy and nghttpx; the tables in README.md and docs/performance.md
	$(TEST_VENV)/bin/python -m bench

bench-quick: $(TEST_VENV)/.done peers  ## the same, smaller: under 3 minutes, tables to the screen only
	$(TEST_VENV)/bin/python -m bench --quick

micro: $(TEST_VENV)/.done  ## the pieces alone, both engines, time and memory (pytest-benchmark)
	$(TEST_VENV)/bin/python -m pytest bench/micro --benchmark-sort=name

.PHONY: peers
peers:
	@command -v nghttpx >/dev/null \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq nghttp2-proxy; } \
		|| echo "nghttpx is not installed (Debian: apt-get install nghttp2-proxy)"

clean:
	rm -rf build dist $(RUN_VENV) $(TEST_VENV) src/*.egg-info
	find src -name '*.so' -delete

$(RUN_VENV)/.done: $(SOURCES)
	$(PYTHON) -m venv $(RUN_VENV)
	$(RUN_VENV)/bin/python -m pip install -q --upgrade pip
	$(RUN_VENV)/bin/python -m pip install -q --upgrade .
	touch $@

$(TEST_VENV)/.done: $(SOURCES)
	$(PYTHON) -m venv $(TEST_VENV)
	$(TEST_VENV)/bin/python -m pip install -q --upgrade pip
	$(TEST_VENV)/bin/python -m pip install -q --group test -e .
	touch $@

$(TEST_VENV)/.lint: $(TEST_VENV)/.done
	$(TEST_VENV)/bin/python -m pip install -q --group lint
	touch $@
