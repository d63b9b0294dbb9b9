#!/bin/bash
# Connect's own conformance suite against envd's rpc code: tests/conformance/run.sh [OPTION...]
# PROFILE chooses the build (asan); options go to connectconformance, such as -v, --trace or
# --run '**/error-with-metadata'. What is known to fail is in known-failing.txt, with reasons.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${OUT:-build}
server=$out/${PROFILE:-asan}/tests/conformance/server
runner=build/conformance/connectconformance
tests/conformance/install.sh
if ! [ -x $runner ]; then
	echo "connectconformance is not here: nothing is tested"
	exit 0
fi
make -s --no-print-directory "PROFILE=${PROFILE:-asan}" "$server"
log=$(mktemp)
last=$(mktemp)
trap 'rm -f "$log" "$last"' EXIT
# A server that never answers makes the runner hang.
play() {
	timeout -k 5 240 $runner --conf tests/conformance/config.yaml --mode server --known-failing @tests/conformance/known-failing.txt \
		"$@" -- "$server" 2>&1
}
status=0
if [ $# != 0 ]; then
	play "$@" | tee "$log" || status=$?
else
	# Calls that have to succeed within two seconds: on a machine that stands still they are made again.
	hasty='Deadline Propagation/**'
	play --skip "$hasty" | tee "$log" || status=$?
	for _ in {1..5}; do
		hurried=0
		play --run "$hasty" > "$last" || hurried=$?
		cat "$last" >> "$log"
		[ "$hurried" != 0 ] || break
	done
	cat "$last"
	[ "$hurried" = 0 ] || status=$hurried
fi
# The runner does not mind how the server ends.
if grep -Eq 'Sanitizer|runtime error:|Assertion' "$log"; then
	echo "server: 0 passed, 1 failed (see the reports above)"
	status=1
fi
exit "$status"
