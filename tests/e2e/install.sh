#!/bin/sh
# Installs the client libraries these tests use: npm's into tests/e2e/node_modules, PyPI's into
# build/venv. Does nothing when they are there. packaging/setup.sh calls it; so does run.sh.
set -e
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)

if ! cmp -s package-lock.json node_modules/.installed; then
	npm ci --no-fund --no-audit --loglevel=error
	cp package-lock.json node_modules/.installed
fi
if ! cmp -s requirements.txt "$root/build/venv/.installed"; then
	mkdir -p "$root/build"
	python3 -m venv "$root/build/venv"
	"$root/build/venv/bin/pip" install --quiet --disable-pip-version-check -r requirements.txt
	cp requirements.txt "$root/build/venv/.installed"
fi
