#!/bin/bash
# `make run`: builds what is shipped, starts one sandbox (`envd -standalone`) and the proxy in front of
# it, takes a tour of both with the unmodified npm client, and stays up until Ctrl-C. With ONCE=1 it
# ends after the tour; the exit status is 0 only if every step was right.
# Works for root and for ordinary users; listens on loopback only, at the ports ENVD_PORT and PROXY_PORT where these
# are free. Logs are in build/run/.
set -euo pipefail
cd "$(dirname "$0")/.."

id=demo
logs=build/run
mkdir -p "$logs"
[ ! -x build/tools/bin/node ] || PATH=$PWD/build/tools/bin:$PATH
if [ ! -d tests/e2e/node_modules/e2b ]; then
	packaging/setup.sh build client
fi

echo "building (make static, make PROFILE=opt)"
make -s --no-print-directory PROFILE=static all
make -s --no-print-directory PROFILE=opt all

is_taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# The first of the ports that nobody listens on, else one from the kernel's range that is free.
free_port() {
	local port
	for port in "$@"; do
		is_taken "$port" || { echo "$port"; return; }
	done
	port=$((20000 + RANDOM % 10000))
	while is_taken "$port"; do port=$((port + 1)); done
	echo "$port"
}

envd='' proxy=''
# shellcheck disable=SC2317 # it is called by the trap
stop() {
	trap - EXIT
	# The proxy first, so that it does not report a sandbox that went away.
	for pid in $proxy $envd; do
		kill -TERM "$pid" 2>/dev/null || true
		wait "$pid" 2>/dev/null || true
	done
}
trap stop EXIT
trap 'echo; echo "stopping"; exit 0' INT TERM

envd_port=$(free_port "${ENVD_PORT:-49983}")
proxy_port=$(free_port "${PROXY_PORT:-3002}" 8080)
admin_port=$(free_port 3003 8081)

# In process groups of their own: Ctrl-C is this script's business.
start_envd() {
	set -m
	build/static/bin/envd -standalone -port "$envd_port" >"$logs/envd.log" 2>&1 &
	envd=$!
	set +m
}

start_proxy() {
	set -m
	build/opt/bin/proxy --listen "127.0.0.1:$proxy_port" --admin "127.0.0.1:$admin_port" \
		--sandbox "$id=127.0.0.1,envd_port=$envd_port" --default-sandbox "$id" --drain-ms 1000 >"$logs/proxy.log" 2>&1 &
	proxy=$!
	set +m
}

# Waits until it listens: NAME PORT.
await() {
	for ((i = 0; i < 600; i++)); do
		kill -0 "${!1}" 2>/dev/null || return 1
		is_taken "$2" && return 0
		sleep 0.1
	done
	return 1
}

failed() {
	echo "$1 did not start:" >&2
	cat "$logs/$1.log" >&2
	exit 1
}

start_envd
if ! await envd "$envd_port"; then
	# The usual port is one of those that the kernel gives to outgoing connections, which do not show as taken.
	grep -qi 'in use' "$logs/envd.log" || failed envd
	envd_port=$(free_port)
	start_envd
	await envd "$envd_port" || failed envd
fi
start_proxy
await proxy "$proxy_port" || failed proxy

status=0
node tests/e2e/tour.mjs "$id" "$proxy_port" || status=$?
if [ $status != 0 ]; then
	for name in envd proxy; do
		echo "--- the end of $logs/$name.log" >&2
		tail -n 20 "$logs/$name.log" >&2
	done
	exit $status
fi
[ -z "${ONCE:-}" ] || exit 0

old="looks for localhost:49983: envd itself, not the proxy"
[ "$envd_port" = 49983 ] || old="looks for localhost:49983, which is in use by something else"
cat <<END

The sandbox stays up until Ctrl-C. It runs commands on this machine, as $(id -un).

  "$id" through the proxy          http://localhost:$proxy_port
  a port of it                     http://PORT-$id.localhost:$proxy_port/
  its envd alone                   http://127.0.0.1:$envd_port
  the proxy's admin API            http://127.0.0.1:$admin_port

  e2b (npm, PyPI)       export E2B_DEBUG=true E2B_SANDBOX_URL=http://localhost:$proxy_port
  novita-sandbox 2      export NOVITA_DEBUG=true NOVITA_SANDBOX_URL=http://localhost:$proxy_port
  novita-sandbox 1      export NOVITA_DEBUG=true       ($old)
  build/opt/bin/sandbox export ENVD_URL=http://127.0.0.1:$envd_port

  Then Sandbox.create() is this sandbox; with e2b, Sandbox.connect("$id") too.
  Logs: $logs/envd.log, $logs/proxy.log
END
# Until Ctrl-C, or until one of them ends by itself.
wait -n "$envd" "$proxy" || status=$?
echo "envd or the proxy ended by itself; see $logs" >&2
exit 1
