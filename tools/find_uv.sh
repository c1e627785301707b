#!/usr/bin/env bash
# Prints the path of uv: the one on the PATH, else one of our own in .tools, which is installed if need be.
# find_uv.sh PYTHON
set -euo pipefail
python=$1

if command -v uv; then
  exit
fi
uv=.tools/bin/uv
if [ ! -x "$uv" ]; then
  echo "Installing uv into .tools" >&2
  log=$(mktemp)
  "$python" -m pip install --quiet --target .tools --upgrade uv 2>"$log" || {
    # Debian and its kin ship Python without pip; a virtual environment brings one along.
    "$python" -m venv .tools/venv 2>/dev/null &&
      .tools/venv/bin/python -m pip install --quiet --target .tools --upgrade uv
  } || {
    cat "$log" >&2
    echo "uv could not be installed. Install uv, or pip for $python, and run make again." >&2
    exit 1
  }
  rm -f "$log"
fi
echo "$PWD/$uv"
