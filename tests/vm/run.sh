#!/bin/bash
# envd as the first process of virtual machines: QEMU in software emulation, so that it needs no rights
# and no hardware. Prints "N passed, N failed" at the end; where it cannot run it says why and that a
# test was skipped. VM_SHOW_CONSOLE=1 shows what the machines print.
set -e
cd "$(dirname "$0")/../.."
[ ! -x build/tools/bin/node ] || export PATH="$PWD/build/tools/bin:$PATH"
status=0
why=$(tests/vm/prepare.sh 2>&1) || status=$?
if [ $status = 77 ]; then
	echo "virtual machines are not tested: $why"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
elif [ $status != 0 ]; then
	echo "$why"
	exit $status
fi
tests/e2e/install.sh
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
node --test --test-concurrency=2 --test-reporter=./tests/e2e/support/reporter.mjs \
	${VM_ONLY:+--test-name-pattern="$VM_ONLY"} tests/vm/*.test.mjs | tee "$log" | grep -v '^# [pfs][aik]' || true
[ "${PIPESTATUS[0]}" = 0 ] || status=1
total() { awk -v word="$1" '$1 == "#" && $2 == word { n += $3 } END { print n + 0 }' "$log"; }
echo "$(total pass) passed, $(total fail) failed"
exit $status
