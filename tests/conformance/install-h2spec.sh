#!/bin/bash
# Installs h2spec, the conformance tests for HTTP/2 that other servers use, into build/conformance. It is a
# Go module: without Go nothing is installed, which is said, and its test is skipped.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=v2.2.1+incompatible
to=build/conformance

if [ -x "$to/h2spec" ] && [ "$(cat "$to/h2spec.version" 2>/dev/null)" = "$VERSION" ]; then
	exit 0
fi
if ! command -v go >/dev/null; then
	echo "note: h2spec is not installed: it needs Go (https://go.dev/dl)" >&2
	exit 0
fi
mkdir -p "$to"
GOFLAGS='' GOBIN=$PWD/$to go install "github.com/summerwind/h2spec/cmd/h2spec@$VERSION" >"$to/h2spec.log" 2>&1 || {
	tail -n 20 "$to/h2spec.log" >&2
	echo "note: h2spec could not be installed" >&2
	exit 0
}
echo "$VERSION" >"$to/h2spec.version"
