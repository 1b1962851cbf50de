# Two commands do all the set-up: `make demo` runs the main job, `make test` passes the tests.
PYTHON := .venv/bin/python
JOBS ?= $(shell nproc)
# What only builds is configured without tests, whose libraries may be missing.
WITH_TESTS := grep -q '^GRADWEAVE_TESTS:BOOL=ON' build/CMakeCache.txt || cmake --preset release -DGRADWEAVE_TESTS=ON

.PHONY: build runtime demo test quick test-core test-runtime bench examples papers pictures site goldens format check soak deps clean help
.DEFAULT_GOAL := help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

deps:  ## Install what is missing (Debian packages, the project's virtual environment)
	@scripts/deps checks

build:  ## Core and command line, without torch: build/gradweave
	@scripts/deps core
	@[ -f build/build.ninja ] || cmake --preset release -DGRADWEAVE_TESTS=OFF
	cmake --build --preset release -j $(JOBS) --target gradweave_cli

runtime:  ## The PyTorch extension, in the project's virtual environment
	@scripts/deps python
	scripts/build-runtime

demo: runtime  ## Train on a slow link: DistributedDataParallel against Gradweave
	$(PYTHON) -m gradweave train demo

test: test-core test-runtime  ## All tests of the first tier

quick: build  ## About a minute once built: the core with fewer random cases, the command, goldens and documents
	@scripts/deps tests && scripts/deps python-tests
	@$(WITH_TESTS)
	cmake --build --preset release -j $(JOBS) --target core_tests
	RC_PARAMS="seed=1 max_success=20" ctest --test-dir build -j $(JOBS) -L unit --output-on-failure --progress
	$(PYTHON) -m pytest -q -n $(JOBS) tests/cli tests/goldens tests/schema tests/examples/test_links.py tests/examples/test_pages.py tests/examples/test_figures.py

test-core: build  ## Tests of the core and the command line
	@scripts/deps tests
	@$(WITH_TESTS)
	cmake --build --preset release -j $(JOBS) --target core_tests
	RC_PARAMS="seed=1" ctest --test-dir build -j $(JOBS) -L unit --output-on-failure

test-runtime: build runtime  ## Tests of the runtime: real processes
	@scripts/deps tests && scripts/deps python-tests
	@$(WITH_TESTS)
	cmake --build --preset release -j $(JOBS) --target torch_tests simulated_device example_train && build/src/runtime/torch_tests --gtest_brief=1
	$(PYTHON) -m pytest -q -n 4 tests  # processes that mostly wait for each other

bench: build runtime  ## Benchmarks against peers; results in docs/
	@scripts/deps checks
	scripts/bench

examples:  ## Regenerate examples/ from the networks and the papers' tables
	@scripts/deps python-tests
	$(PYTHON) scripts/make_examples.py

papers: build  ## Fill docs/papers.md with what the papers' claims come to here
	python3 scripts/make_papers.py

pictures: build  ## Draw the schemes' timelines in docs/pictures/
	python3 scripts/make_pictures.py

site:  ## The documents as a site: build/site/index.html
	@scripts/deps python-tests
	mkdir -p build/pages
	for page in README.md SECURITY.md CONTRIBUTING.md CHANGELOG.md LICENSE docs examples tests; do ln -sfn ../../$$page build/pages/$$page; done
	$(PYTHON) scripts/make_api.py
	$(PYTHON) -m mkdocs build --strict -q

format:  ## Format all C++ sources
	@scripts/deps checks
	git ls-files '*.cc' '*.h' | xargs clang-format-14 -i

check:  ## Formatting, lint, sanitizers, fuzzers: what CI runs besides the tests (STEPS="format tidy sanitize fuzz")
	@scripts/deps checks
	scripts/check $(STEPS)

goldens: build  ## Regenerate the golden results; read the diff
	python3 scripts/make_goldens.py

soak: test-core  ## Property tests with 20,000 cases each
	RC_PARAMS="max_success=20000" ctest --test-dir build -j $(JOBS) -L unit --output-on-failure --timeout 86400

clean:  ## Remove what was built (the virtual environment stays)
	rm -rf build build-* out python/gradweave/*.so python/gradweave/_built_for.py
