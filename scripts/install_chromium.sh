#!/usr/bin/env bash
# Install Chromium with the system's package manager unless one is there: the report's tests draw in it.
set -euo pipefail
for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
if ! command -v apt-get >/dev/null; then
    echo "no Chromium and no apt-get: install Chromium, then run this again" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    as_root=(sudo)
fi
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium
