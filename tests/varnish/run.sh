#!/bin/sh
# Plays the scripts of this folder, written for varnishtest (of Debian's varnish), against one proxy, whose
# address is ${proxy} in them. Their scripted servers are ports of its sandbox abc.
set -e
cd "$(dirname "$0")/../.."
proxy=${PROXY_BIN:-${OUT:-build}/dev/bin/proxy}
folder=$(mktemp -d)
: >"$folder/out"
"$proxy" --listen 127.0.0.1:0 --admin none --workers 1 --sandbox abc=127.0.0.1 >"$folder/out" 2>"$folder/log" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; wait "$pid" || true; rm -rf "$folder"' EXIT
for _ in $(seq 1200); do
	port=$(sed -n 's/^proxy listening on [^ ]*:\([0-9]*\).*/\1/p' "$folder/out")
	[ -z "$port" ] || break
	sleep 0.05
done
[ -n "$port" ] || { cat "$folder/log"; echo "the proxy did not start"; exit 1; }
if [ $# -eq 0 ]; then
	set -- tests/varnish/*.vtc
fi
varnishtest -j 2 -t 90 "-Dproxy=127.0.0.1:$port" "$@"
kill "$pid"
wait "$pid"
