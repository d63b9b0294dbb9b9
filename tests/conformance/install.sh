#!/bin/bash
# Installs connectconformance, the Connect project's own test runner, into build/conformance. It is a
# Go module: without a Go of 1.21 or newer (older ones cannot fetch the toolchain it asks for) nothing
# is installed, which is said, and the suite counts nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

VERSION=v1.0.7
MODULE=connectrpc.com/conformance
to=build/conformance

if [ "$("$to/connectconformance" --version 2>/dev/null)" = "connectconformance $VERSION" ] &&
	[ -d "$to/proto" ]; then
	exit 0
fi
minor=$( (go env GOVERSION 2>/dev/null || true) | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
if [ "${minor:-0}" -lt 21 ]; then
	echo "note: connectconformance is not installed: it needs Go 1.21 or newer (https://go.dev/dl)" >&2
	exit 0
fi
mkdir -p "$to"
GOFLAGS='' GOBIN=$PWD/$to go install "$MODULE/cmd/connectconformance@$VERSION" >"$to/install.log" 2>&1 || {
	tail -n 20 "$to/install.log" >&2
	echo "note: connectconformance could not be installed" >&2
	exit 0
}

# What the test server is made of: the runner's .proto files, in the words protobuf-c knows. Optional
# fields become a oneof of one; Any becomes a message of our own with the same wire format, which can
# also carry what its JSON form shows in place of `value` (server.c).
cache=$(go env GOMODCACHE)/$MODULE@$VERSION/proto/connectrpc/conformance/v1
rm -rf "$to/proto"
mkdir -p "$to/proto.new/conformance"
for name in config service server_compat; do
	sed -E -e 's/^package .*/package conformance;/' \
		-e '/^import "google/d' \
		-e 's/^import "connectrpc.conformance.v1./import "conformance\//' \
		-e '/^service /,/^}/d' \
		-e 's/google\.protobuf\.Any/Any/' \
		-e 's/^( *)optional ([a-z0-9]+) ([a-z0-9_]+) = /\1oneof opt_\3 { \2 \3 = /' \
		-e '/oneof opt_/s/;/; }/' \
		"$cache/$name.proto" >"$to/proto.new/conformance/$name.proto"
done
cat >>"$to/proto.new/conformance/service.proto" <<'EOF'
message Any {
  string type_url = 1;
  bytes value = 2;
  UnaryResponseDefinition response_definition = 100;
  StreamResponseDefinition stream_definition = 101;
  bytes request_data = 102;
}
EOF
mv "$to/proto.new" "$to/proto"
