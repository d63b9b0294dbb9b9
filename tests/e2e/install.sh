#!/bin/sh
# Installs the client libraries these tests use: npm's into tests/e2e/node_modules, PyPI's into
# build/venv and build/venv-old. Does nothing when they are there. packaging/setup.sh calls it; so
# does run.sh.
set -e
cd "$(dirname "$0")"
build=$(cd ../.. && pwd)/build
mkdir -p "$build"
exec 8>"$build/e2e-install.lock"
flock 8

if ! cmp -s package-lock.json node_modules/.installed; then
	npm ci --no-fund --no-audit --loglevel=error
	cp package-lock.json node_modules/.installed
fi
for name in "" -old; do
	# Also when the Python it was made with is gone.
	if ! cmp -s "requirements$name.txt" "$build/venv$name/.installed" || ! "$build/venv$name/bin/python3" -c '' 2>/dev/null; then
		python3 -m venv --clear "$build/venv$name"
		"$build/venv$name/bin/pip" install --quiet --disable-pip-version-check -r "requirements$name.txt"
		cp "requirements$name.txt" "$build/venv$name/.installed"
	fi
done
