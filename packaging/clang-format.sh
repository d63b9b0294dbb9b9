#!/bin/sh
# clang-format of the version that .clang-format was written for, because versions differ: the machine's, or the one
# that packaging/setup.sh has installed from PyPI.
wanted=14
machine=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
if [ "$machine" = $wanted ]; then
	exec clang-format "$@"
fi
own=$(dirname "$0")/../build/clang-format/bin/clang-format
if ! [ -x "$own" ]; then
	echo "clang-format $wanted is needed: packaging/setup.sh installs it" >&2
	exit 1
fi
exec "$own" "$@"
