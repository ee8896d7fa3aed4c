#!/usr/bin/env bash
# Tests the project quotas of homes on XFS and ext4 in a virtual machine, since the kernels of many
# machines have none. The machine runs Debian's kernel for amd64, which is downloaded once, and the
# tests of internal/runtime/docker/homequota as its first process. It is emulated, so it needs no
# virtualization; setup.sh quota installs what this needs.
#
#	project-quota.sh [FLAGS OF THE TEST PROGRAM, such as -test.run TestProjectTree]
set -euo pipefail
cd "$(dirname "$0")"
source messages.sh

# In the order in which most need the others; the tests retry.
modules=(
	virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk
	crc16 crc32c_generic libcrc32c mbcache jbd2 ext4 xfs quota_tree quota_v2
)
PATH=$PATH:/usr/sbin:/sbin
limit=600 # seconds for the whole run of the machine

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# kernel prints the folder of the unpacked kernel package.
kernel() {
	local package cache dir
	package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -n 1)
	[ -n "$package" ] || die "apt knows no kernel linux-image-cloud-amd64; run apt-get update"
	cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codehub
	dir=$cache/$package
	if [ ! -e "$dir/complete" ]; then
		echo "quota: downloading $package" >&2
		rm -rf "$cache"/linux-image-*-cloud-amd64 # earlier ones as well
		mkdir -p "$dir"
		(cd "$work" && apt-get -qq -o APT::Sandbox::User=root download "$package" >&2)
		dpkg-deb --extract "$work/$package"_*.deb "$dir"
		touch "$dir/complete"
	fi
	echo "$dir"
}

# put_modules FOLDER copies the modules that the kernel does not have built in.
put_modules() {
	local name file
	mkdir -p "$work/root/modules"
	for name in "${modules[@]}"; do
		file=$(find "$1/lib/modules" "$1/usr/lib/modules" -name "$name.ko*" -print -quit 2>/dev/null || true)
		[ -n "$file" ] || continue
		cp "$file" "$work/root/modules/"
		if [[ $file == *.xz ]]; then xz -d "$work/root/modules/$name.ko.xz"; fi
	done
}

dir=$(kernel)
put_modules "$dir"
(cd .. && CGO_ENABLED=0 GOARCH=amd64 go test -c -tags projectvm -o "$work/root/init" ./internal/runtime/docker/homequota)
(cd "$work/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/initramfs"
truncate -s 1G "$work/xfs" "$work/ext4"
mkfs.xfs -q "$work/xfs"
mkfs.ext4 -q -F -O project,quota -E quotatype=prjquota "$work/ext4"

images=("$dir"/boot/vmlinuz-*)
echo "quota: starting a virtual machine with ${images[0]##*/}"
# The kernel gives what it does not know in its command line to the first process, after "--" as arguments.
timeout --foreground "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nodefaults -no-reboot -display none -serial stdio \
	-kernel "${images[0]}" -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 no_timer_check -- -test.run=^TestProject -test.v $*" \
	-drive "file=$work/xfs,format=raw,if=virtio,cache=unsafe" -drive "file=$work/ext4,format=raw,if=virtio,cache=unsafe" </dev/null |
	tr -d '\r' | tee "$work/output" || die "the virtual machine did not end within $limit s"
grep -q '^project-quota: the tests ended with code 0$' "$work/output" || die "the tests of project quotas failed (see above)"
echo "quota: project quotas work on XFS and ext4: $SECONDS s"
