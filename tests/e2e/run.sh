#!/bin/bash
# The end-to-end tests: tests/e2e/run.sh [FILE...]
# Runs every *.test.mjs and test_*.py here, or only the named ones, against the static envd and the
# optimised proxy (or ENVD_BIN and PROXY_BIN) with the sandbox program beside it (or SANDBOX_BIN), in a
# world of their own (support/enter.sh).
# The exit status is 0 only if everything passed. E2E_SHOW_LOGS=1 shows the programs' logs;
# E2E_ONLY=PATTERN runs the JavaScript tests whose names match.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$here"

export ENVD_BIN=${ENVD_BIN:-$root/build/static/bin/envd}
if [ -z "$PROXY_BIN" ]; then
	PROXY_BIN=$root/build/opt/bin/proxy
	[ -x "$PROXY_BIN" ] || PROXY_BIN=$root/build/dev/bin/proxy
fi
# Relative names are relative to the repository.
[[ $ENVD_BIN = /* ]] || ENVD_BIN=$root/$ENVD_BIN
[[ $PROXY_BIN = /* ]] || PROXY_BIN=$root/$PROXY_BIN
SANDBOX_BIN=${SANDBOX_BIN:-$(dirname "$PROXY_BIN")/sandbox}
[[ $SANDBOX_BIN = /* ]] || SANDBOX_BIN=$root/$SANDBOX_BIN
export PROXY_BIN SANDBOX_BIN
for program in "$ENVD_BIN" "$PROXY_BIN" "$SANDBOX_BIN"; do
	if [ ! -x "$program" ]; then
		echo "$program is missing: make static && make PROFILE=opt" >&2
		exit 2
	fi
done

# packaging/setup.sh puts a newer Node.js there where the distribution's is too old.
[ ! -x "$root/build/tools/bin/node" ] || export PATH="$root/build/tools/bin:$PATH"

if [ -z "$E2E_INSIDE" ]; then
	./install.sh
	exec support/enter.sh "$here/run.sh" "$@"
fi

# Node.js takes what it trusts at its start.
E2E_TLS=$(mktemp -d)
"$PROXY_BIN" dev-certificate "$E2E_TLS" > /dev/null
export E2E_TLS NODE_EXTRA_CA_CERTS=$E2E_TLS/ca.pem SSL_CERT_FILE=$E2E_TLS/ca.pem

scripts=() suites=()
for file in "${@:-}"; do
	case $file in
	'') scripts=(*.test.mjs) suites=(test_*.py) ;;
	*.py) suites+=("$(basename "$file")") ;;
	*) scripts+=("$(basename "$file")") ;;
	esac
done

status=0
log=$(mktemp)
trap 'rm -rf "$log" "$E2E_TLS"' EXIT
if [ ${#scripts[@]} != 0 ]; then
	node --test --test-concurrency="${E2E_CONCURRENCY:-2}" --test-reporter=./support/reporter.mjs \
		${E2E_ONLY:+--test-name-pattern="$E2E_ONLY"} "${scripts[@]}" | tee "$log" || true
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
fi
for suite in "${suites[@]}"; do
	[ -e "$suite" ] || continue
	age=
	[[ $suite != *_old.py ]] || age=-old
	"$root/build/venv$age/bin/python" -B "$suite" 2>&1 | tee -a "$log" || true
	[ "${PIPESTATUS[0]}" = 0 ] || status=1
done
total() { awk -v word="$1" '$1 == "#" && $2 == word { n += $3 } END { print n + 0 }' "$log"; }
echo "# end to end: $(total pass) passed, $(total fail) failed, $(total skipped) skipped"
[ "$(total pass)" != 0 ] || status=1
exit $status
