#!/bin/bash
# Makes what the machines of these tests boot: build/vm/vmlinuz, Debian's kernel for clouds;
# build/vm/initramfs, in which there are envd, busybox, the kernel's modules for network card and disk
# and a script that loads them and becomes envd; and build/vm/disk, the same as an ext4 file system, to
# which that script moves if the machine has it. Nothing is installed: the kernel's package is unpacked.
# Exit status 77, with the reason, where that cannot be done.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT:-build}/vm
envd=${ENVD_BIN:-build/static/bin/envd}

PATH=$PATH:/usr/sbin:/sbin
give_up() { echo "$1" >&2; exit 77; }

[ "$(uname -m)" = x86_64 ] || give_up "there are virtual machines for x86_64 alone"
for program in qemu-system-x86_64 busybox cpio mke2fs dpkg-deb apt-get; do
	command -v $program >/dev/null || give_up "$program is missing: packaging/setup.sh vm"
done
mkdir -p "$out"
exec 9>"$out/lock"
flock 9

if ! [ -e "$out/vmlinuz" ]; then
	package=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null |
		sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
	[ -n "$package" ] || give_up "there is no package linux-image-cloud-amd64 here"
	(cd "$out" && apt-get -q download "$package" >download.log 2>&1) ||
		give_up "$package cannot be downloaded: $(tail -n 1 "$out/download.log")"
	mkdir -p "$out/kernel"
	dpkg-deb -x "$out/$package"_*.deb "$out/kernel"
	cp "$out"/kernel/boot/vmlinuz-* "$out/vmlinuz.new"
	mv "$out/vmlinuz.new" "$out/vmlinuz"
fi

# In the order of their needs. What a kernel has built in is not there as a file.
modules="virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci failover net_failover virtio_net virtio_blk"
root=$(mktemp -d "$out/root.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,etc,home/user,modules,root,usr/bin}
number=10
for module in $modules; do
	file=$(find "$out/kernel" -name "$module.ko*" | head -n 1)
	case $file in
	'') continue ;;
	*.xz) xz -dc "$file" >"$root/modules/$number-$module.ko" ;;
	*) cp "$file" "$root/modules/$number-$module.ko" ;;
	esac
	number=$((number + 1))
done
cp "$(command -v busybox)" "$root/bin/busybox"
for name in $(busybox --list); do
	[ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
done
cp "$envd" "$root/usr/bin/envd"
printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n' >"$root/etc/passwd"
printf 'root:x:0:\ntty:x:5:\nuser:x:1000:\n' >"$root/etc/group"
printf '# what this is\n\n  proving-ground\n' >"$root/etc/hostname"
# Only what belongs to these machines: their card, and the address that QEMU forwards to. Everything
# else is left as the kernel starts its first process, without /proc, /sys and /dev.
cat >"$root/init" <<'END'
#!/bin/sh
export PATH=/bin
for module in /modules/*.ko; do insmod $module; done
ip address add 10.0.2.15/24 dev eth0
ip link set eth0 up
# From the kernel's command line. A console may be too slow for envd, which then drops lines.
[ -z "$envd_log" ] || exec >>"$envd_log" 2>&1
mkdir -p /dev /disk
mount -t devtmpfs dev /dev
if [ -b /dev/vda ]; then
	mount -t ext4 /dev/vda /disk
	umount /dev
	unset PATH
	exec /bin/switch_root /disk /usr/bin/envd "$@"
fi
umount /dev
unset PATH
exec /usr/bin/envd "$@"
END
chmod 755 "$root" "$root/init" "$root/usr/bin/envd"
chmod 777 "$root/home/user"
(cd "$root" && find . | cpio --quiet -o -H newc --owner=0:0) | gzip -1 >"$out/initramfs.new"
mv "$out/initramfs.new" "$out/initramfs"
rm -r "$root/modules" "$root/init"
rm -f "$out/disk.new"
mke2fs -q -t ext4 -d "$root" "$out/disk.new" 64M
mv "$out/disk.new" "$out/disk"
