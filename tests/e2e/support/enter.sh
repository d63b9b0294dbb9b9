#!/bin/bash
# support/enter.sh COMMAND...: run COMMAND in a small world of its own, so that tests may use fixed
# ports, edit /etc/passwd and fill /home without touching the machine, and so that nothing they
# start can outlive them.
#
# The world: private mount, network, process and ipc namespaces; only a loopback interface; its own
# /proc and /dev/pts; /etc/passwd and /etc/group with the users below; /home, /run and /tmp in memory.
# As root this is plain unshare. As an ordinary user it needs subordinate ids (package uidmap and an
# entry in /etc/subuid), because files must be able to belong to several users.
set -e

if [ -z "$E2E_INSIDE" ]; then
	export E2E_INSIDE=outer
	flags=(--mount --net --pid --ipc --fork --kill-child=KILL)
	if [ "$(id -u)" != 0 ]; then
		flags=(--user --map-root-user --map-auto "${flags[@]}")
		if ! unshare "${flags[@]}" true 2>/dev/null; then
			echo "end-to-end tests need root, or the package uidmap and a range in /etc/subuid" >&2
			exit 77
		fi
	fi
	exec unshare "${flags[@]}" "$0" "$@"
fi

if [ "$E2E_INSIDE" = outer ]; then
	mount --make-rprivate /
	mount -t proc proc /proc
	mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts /dev/pts 2>/dev/null ||
		mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts /dev/pts
	if [ ! -L /dev/ptmx ]; then
		mount --bind /dev/pts/ptmx /dev/ptmx
	fi
	ip link set lo up
	echo 40000 60999 > /proc/sys/net/ipv4/ip_local_port_range # below, tests choose (freePort)

	mount -t tmpfs -o mode=755 tmpfs /run # envd writes there
	# The repository may be in /tmp. Twice, so that one umount too many does not lay bare the machine's.
	root=$(cd "$(dirname "$0")/../../.." && pwd)
	mount -t tmpfs -o mode=1777 tmpfs /mnt
	if [[ $root = /tmp/* ]]; then
		mkdir -p "/mnt${root#/tmp}"
		mount --bind "$root" "/mnt${root#/tmp}"
		mount -o remount,bind,ro "/mnt${root#/tmp}" # some test empties /tmp
	fi
	mount --rbind /mnt /tmp
	mount --rbind /mnt /tmp
	# An ordinary user's root has none. Otherwise it is the machine's, which other files' worlds see at the same time:
	# what a test leaves there, if only for a moment, has a name that no other test uses.
	[ -w /root ] || mount -t tmpfs -o mode=700 tmpfs /root

	# Nothing a test writes may stay in the tree.
	mount --bind "$root/tests" "$root/tests"
	mount -o remount,bind,ro "$root/tests"
	cd "$PWD" # this folder is the one below the new mount

	world=/mnt
	mount -t tmpfs -o mode=755 tmpfs "$world"

	# name:uid:home:shell. "homeless" has a home that does not exist, "nologin" a shell that refuses.
	users="user:1000:/home/user:/bin/bash
other:1001:/home/other:/bin/bash
homeless:1002:/nonexistent/home:/bin/sh
nologin:1003:/home/nologin:/usr/sbin/nologin"
	awk -F: -v users="$users" 'BEGIN {
		n = split(users, lines, "\n")
		for (i = 1; i <= n; i++) { split(lines[i], f, ":"); taken[f[1]] = 1; id[f[2]] = 1 }
	} !($1 in taken) && !($3 in id)' /etc/passwd > "$world/passwd"
	awk -F: -v users="$users" 'BEGIN {
		n = split(users, lines, "\n")
		for (i = 1; i <= n; i++) { split(lines[i], f, ":"); taken[f[1]] = 1; id[f[2]] = 1 }
	} !($1 in taken) && !($3 in id)' /etc/group > "$world/group"
	mkdir "$world/home"
	for entry in /home/*; do
		if [ -d "$entry" ] && [ ! -L "$entry" ]; then
			mkdir "$world/home/${entry#/home/}"
			mount --rbind "$entry" "$world/home/${entry#/home/}"
		fi
	done
	while IFS=: read -r name uid home shell; do
		echo "$name:x:$uid:$uid:$name:$home:$shell" >> "$world/passwd"
		echo "$name:x:$uid:" >> "$world/group"
		case $home in
		/home/*)
			umount "$world$home" 2>/dev/null || true
			mkdir -p "$world$home"
			chown "$uid:$uid" "$world$home"
		esac
	done <<< "$users"
	echo "painters:x:2001:user" >> "$world/group"
	# What is https in the tests (support/roads.mjs). Some clients read this file once.
	cp /etc/hosts "$world/hosts"
	echo "127.0.0.2 api.sbx.localhost" >> "$world/hosts"
	for name in sandbox {49983,49999}-sbx1{,-local}; do # novita-sandbox 1.0.1 appends the client's id
		echo "127.0.0.1 $name.sbx.localhost" >> "$world/hosts"
	done
	chmod 644 "$world/passwd" "$world/group" "$world/hosts"
	mount --bind "$world/passwd" /etc/passwd
	mount --bind "$world/group" /etc/group
	mount --bind "$world/hosts" /etc/hosts
	mount --rbind "$world/home" /home

	export E2E_INSIDE=yes
	export HOME=/root
	unset E2B_DEBUG E2B_SANDBOX_URL E2B_API_KEY E2B_DOMAIN NOVITA_DEBUG NOVITA_SANDBOX_URL NOVITA_API_KEY
	unset HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy NODE_OPTIONS

	# /init sets the clock, and there is no namespace for that one: nothing in here may.
	# Not exec: this shell is process 1 of the namespace, and it reaps.
	setpriv --inh-caps=-sys_time --bounding-set=-sys_time -- "$@" &
	trap 'kill -TERM $! 2>/dev/null' TERM INT
	status=0
	wait $! || status=$?
	for _ in {1..200}; do
		left=()
		for entry in /proc/[0-9]*; do
			pid=${entry#/proc/}
			[ "$pid" != 1 ] || continue
			command=
			while IFS= read -r -d '' word; do command="$command $word"; done 2>/dev/null < "$entry/cmdline" || true
			[ -n "$command" ] || continue # a zombie about to be reaped, or gone
			left+=("$pid$command")
		done
		[ ${#left[@]} != 0 ] || break
		sleep 0.1 # what was killed at the last moment may not have had the processor since
	done
	for each in "${left[@]}"; do
		echo "# left running by the tests: $each" >&2
		[ $status != 0 ] || status=1
	done
	exit $status
fi

exec "$@"
