#!/bin/bash
# Makes the libraries the static envd and envd-watch link with: packaging/musl-deps.sh build/musl
#
#   libuv, jansson     compiled with musl-gcc from Debian's source packages (Debian's own .a need glibc)
#   libinotifytools    the same, for envd-watch alone (it is under the GPL); without patterns and texts
#   libsodium          the same, of it only SHA-256, SHA-512, HMAC-SHA-256 and SipHash
#   protobuf-c, zlib   Debian's .a as they are: they use nothing that musl lacks
#   include/           their headers, and links to the kernel's, which musl-gcc does not search
#
# Sources come through apt with a state folder and a list of sources of our own, derived from the
# machine's, so that the machine's apt setup is neither changed nor needs deb-src lines.
set -euo pipefail

target=$(realpath -m "${1:?usage: musl-deps.sh TARGET_FOLDER}")
work=$target/work
multiarch=$(gcc -print-multiarch)
flags=(-Os -g -ffunction-sections -fdata-sections -fno-asynchronous-unwind-tables -fno-pie -w)

# What was built and tested with; another content under one of these names is refused. A version that
# is not listed (another Debian release) is taken on the word of the archive's signature alone.
pinned='
e89fe4fd8221f6934ddb50f2e7f8404311928d0e23e49a5599f3d3d14ee8cb88  jansson_2.14-2.debian.tar.xz
c739578bf6b764aa0752db9a2fdadcfe921c78f1228c7ec0bb47fa804c55d17b  jansson_2.14.orig.tar.gz
14fc605e7d1520137416fd8c097b58a191be9b07bdbb406f7b39c7894b7d66a5  libuv1_1.44.2-1+deb12u1.debian.tar.xz
d79b4b06ef04be85fb890bf39d55942cc64c2e15fd14eaa32dae5dce94485484  libuv1_1.44.2.orig.tar.gz
f410474e46346b06b162defa05b1be26906aeed6cf309e3d4ebe30b4d1350733  libsodium_1.0.18-1+deb12u1.debian.tar.xz
d59323c6b712a1519a5daf710b68f5e7fde57040845ffec53850911f10a5d4f4  libsodium_1.0.18.orig.tar.gz
171ce8415710798742ed0921928618932ecc3b8b3fa9e75ac62fe10df4d461ea  libuv1_1.50.0-2.debian.tar.xz
ec9de6ecf2a780fd2afb3b007947d2cd57c3bb17f3b9e721a66774980d35cd4d  libuv1_1.50.0.orig.tar.gz
c6b7e70f1df09e386217102a1fe041cfc15fa4f3d683d2970140b6814cf2ed12  inotify-tools_3.22.6.0.orig.tar.gz
'

rm -rf "$target"
mkdir -p "$target/include" "$target/lib" "$work/lists/partial" "$work/cache/archives/partial" "$work/source"

log=$work/log
fail() {
	tail -n 40 "$log" >&2
	echo "musl-deps: $1" >&2
	exit 1
}

# --- the kernel's headers
ln -s /usr/include/linux "$target/include/linux"
ln -s /usr/include/asm-generic "$target/include/asm-generic"
ln -s "/usr/include/$multiarch/asm" "$target/include/asm"

# --- sources
format="\$(LABEL)|\$(SIGNED_BY)|\$(SITE)|\$(RELEASE)|\$(COMPONENT)"
apt-get indextargets --format "$format" 'Created-By: Packages' | sort -u >"$work/targets"
grep '^Debian' "$work/targets" >"$work/debian" || cp "$work/targets" "$work/debian"

# apt-get with the sources of all archives whose label is not $1.
apt_without() {
	local excluded=$1
	shift
	awk -F '|' -v excluded="$excluded" '$1 != excluded {
		print "deb-src", ($2 ~ /^\// ? "[signed-by=" $2 "]" : ""), $3, $4, $5
	}' "$work/debian" >"$work/sources.list"
	apt-get -q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- \
		-o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache" \
		-o APT::Sandbox::User="$(id -un)" -o APT::Get::List-Cleanup=false \
		-o Acquire::Languages=none -o Acquire::Retries=2 "$@" >>"$log" 2>&1
}
apt_without none update || fail "apt-get update failed"
cd "$work/source"
for package in libuv1 jansson libsodium; do
	# Some mirrors carry the security archive without its sources; point releases bring them later.
	apt_without none source --download-only "$package" ||
		apt_without Debian-Security source --download-only "$package" ||
		fail "the source of $package could not be fetched"
done
# The upstream source alone: what Debian adds is packaging, which some mirrors lack.
apt_without none source --download-only --tar-only inotify-tools ||
	apt_without Debian-Security source --download-only --tar-only inotify-tools ||
	fail "the source of inotify-tools could not be fetched"

sha256sum -- *.tar.* | grep -v '\.asc$' >../sums
while read -r sum name; do
	expected=$(awk -v name="$name" '$2 == name {print $1}' <<<"$pinned")
	if [ -z "$expected" ]; then
		echo "musl-deps: note: $name is not a version that was tested with"
	elif [ "$expected" != "$sum" ]; then
		fail "$name is not the file it was: sha256 $sum, expected $expected"
	fi
done <"$work/sums"

for description in "$work"/source/*.dsc; do
	name=$(basename "$description" | sed 's/_.*//')
	[ "$name" != inotify-tools ] || continue
	dpkg-source --no-check -x "$description" "$work/$name" >>"$log" 2>&1 || fail "$name does not unpack"
done

# --- libuv
cd "$work/libuv1"
units=()
for unit in async core dl epoll fs getaddrinfo getnameinfo linux linux-core linux-inotify linux-syscalls \
	loop loop-watcher pipe poll process procfs-exepath proctitle random-devurandom random-getrandom \
	random-sysctl-linux signal stream tcp thread tty udp; do
	if [ -e "src/unix/$unit.c" ]; then
		units+=("src/unix/$unit.c")
	fi
done
mkdir objects
for unit in src/*.c "${units[@]}"; do
	musl-gcc "${flags[@]}" -std=gnu11 -D_GNU_SOURCE -isystem "$target/include" -Iinclude -Isrc \
		-c -o "objects/$(tr / _ <<<"$unit").o" "$unit" >>"$log" 2>&1 || fail "$unit does not compile"
done
ar rcs "$target/lib/libuv.a" objects/*.o
cp -R include/uv.h include/uv "$target/include/"

# --- jansson
# The flags belong to the build type alone: cmake's probe of type sizes fails when it is optimised.
cmake -S "$work/jansson" -B "$work/jansson-build" -DCMAKE_C_COMPILER=musl-gcc -DCMAKE_BUILD_TYPE=Release \
	-DCMAKE_C_FLAGS_RELEASE="${flags[*]}" -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON \
	-DJANSSON_EXAMPLES=OFF >>"$log" 2>&1 || fail "jansson does not configure"
cmake --build "$work/jansson-build" -j "$(nproc)" >>"$log" 2>&1 || fail "jansson does not compile"
cp "$work/jansson-build/lib/libjansson.a" "$target/lib/"
cp "$work/jansson-build/include/jansson.h" "$work/jansson-build/include/jansson_config.h" "$target/include/"

# --- libsodium
cd "$work/libsodium/src/libsodium"
mkdir "$work/sodium-objects"
for unit in crypto_hash/sha256/cp/hash_sha256_cp.c crypto_hash/sha512/cp/hash_sha512_cp.c sodium/utils.c \
	crypto_auth/hmacsha256/auth_hmacsha256.c crypto_verify/sodium/verify.c crypto_shorthash/crypto_shorthash.c \
	crypto_shorthash/siphash24/ref/shorthash_siphash24_ref.c; do
	musl-gcc "${flags[@]}" -std=gnu11 -D_GNU_SOURCE -DHAVE_EXPLICIT_BZERO -isystem "$target/include" \
		-Iinclude -Iinclude/sodium -c -o "$work/sodium-objects/$(basename "$unit").o" "$unit" \
		>>"$log" 2>&1 || fail "$unit does not compile"
done
ar rcs "$target/lib/libsodium.a" "$work"/sodium-objects/*.o
mkdir -p "$target/include/sodium"
cp include/sodium/crypto_hash_sha256.h include/sodium/crypto_hash_sha512.h include/sodium/export.h \
	include/sodium/crypto_auth_hmacsha256.h include/sodium/crypto_shorthash.h \
	include/sodium/crypto_shorthash_siphash24.h "$target/include/sodium/"

# --- libinotifytools
# Every page that a watch touches counts, and there is one process a watch. So what envd-watch never asks for
# (patterns, messages, formatted events: all of stdio) is compiled to nothing, the large buffers that only those
# use go behind everything else.
mkdir "$work/inotify-tools"
tar -xf "$work"/source/inotify-tools_*.orig.tar.* -C "$work/inotify-tools" --strip-components 1
cd "$work/inotify-tools/libinotifytools/src"
if [ -e inotifytools.c ]; then
	cat >"$work/plain.h" <<-'END'
		#include <regex.h>
		#include <stdio.h>
		#include <time.h>
		#define asprintf(...) (-1)
		#define fprintf(...) 0
		#define printf(...) 0
		#define regexec(...) 1
		#define snprintf(...) 0
		#define sprintf(...) 0
		#define strftime(...) 0
	END
	touch ../../config.h
	# It has the kernel's header itself, and musl's declares the same once more.
	sed '/<sys\/fanotify.h>/d' inotifytools/fanotify.h.in >inotifytools/fanotify.h
	sed 's/#undef SYS_INOTIFY_H_EXISTS_AND_WORKS/#define SYS_INOTIFY_H_EXISTS_AND_WORKS 1/' \
		inotifytools/inotify.h.in >inotifytools/inotify.h
	mkdir "$work/inotify-objects"
	for unit in inotifytools redblack stats; do
		object=$work/inotify-objects/$unit.o
		musl-gcc "${flags[@]}" -std=gnu11 -D_GNU_SOURCE -isystem "$target/include" -I. \
			-include "$work/plain.h" -c -o "$object" "$unit.c" >>"$log" 2>&1 || fail "$unit does not compile"
		# Of a page and more: the size is a column of eight hexadecimal digits.
		objdump -h "$object" | awk '$2 ~ /^\.bss\./ && length($3) == 8 && $3 >= "00001000" {print $2}' |
			while read -r section; do
				objcopy --rename-section "$section=.lbss$section" "$object"
			done
	done
	ar rcs "$target/lib/libinotifytools.a" "$work"/inotify-objects/*.o
	mkdir "$target/include/inotifytools"
	cp inotifytools/inotifytools.h inotifytools/inotify.h "$target/include/inotifytools/"
else
	# From Debian 13 on it is C++, for which there is no musl library: envd-watch takes Debian's own.
	echo "musl-deps: note: libinotifytools is not C here; envd-watch is linked with glibc"
fi

# --- Debian's own
libraries=$(dirname "$(gcc -print-file-name=libprotobuf-c.a)")
cp "$libraries/libprotobuf-c.a" "$libraries/libz.a" "$target/lib/"
mkdir -p "$target/include/protobuf-c"
cp /usr/include/protobuf-c/protobuf-c.h "$target/include/protobuf-c/"
for header in zlib.h zconf.h llhttp.h; do
	for folder in /usr/include "/usr/include/$multiarch"; do
		if [ -e "$folder/$header" ]; then
			cp "$folder/$header" "$target/include/"
		fi
	done
done

cp "$work/sums" "$target/sources.sha256"
cd /
rm -rf "$work"
touch "$target/.ready"
