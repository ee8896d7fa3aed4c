#!/usr/bin/env bash
# Builds the image of the server from bin/codehub and bin/codehub-agent, unless the present one
# was built from the same inputs. It has both executables, the certificates of public
# authorities, and no shell.
#
#	build.sh [IMAGE [EXECUTABLE]]
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
image=${1:-codehub/server:latest}
executable=${2:-../../bin/codehub}
authorities=/etc/ssl/certs/ca-certificates.crt

agent=$(dirname "$executable")/codehub-agent # what workspaces mount
for file in "$executable" "$agent"; do
	[ -x "$file" ] || die "$file is missing: run make build"
done
[ -r "$authorities" ] || die "$authorities is missing: install the package ca-certificates"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/root/usr/local/bin" "$work/root/opt/codehub" "$work/root/etc/ssl/certs" "$work/root/tmp" "$work/root/var/lib/codehub"
cp "$executable" "$work/root/usr/local/bin/codehub"
cp "$agent" "$work/root/opt/codehub/codehub"
cp "$authorities" "$work/root/etc/ssl/certs/"
printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' 'codehub:x:65532:65532:codehub:/var/lib/codehub:/sbin/nologin' >"$work/root/etc/passwd"
printf '%s\n' 'root:x:0:' 'codehub:x:65532:' >"$work/root/etc/group"
chmod 1777 "$work/root/tmp"
digest=$(digest_files Dockerfile build.sh -C "$work" root)
if is_current "$image" "$digest"; then
	echo "image: $image is up to date"
	exit 0
fi

echo "image: building $image (codehub on an empty base)"
tar --create --file="$work/rootfs.tar" --sort=name --owner=0 --group=0 --numeric-owner \
	--exclude=./var/lib/codehub -C "$work/root" .
tar --append --file="$work/rootfs.tar" --owner=65532 --group=65532 --numeric-owner -C "$work/root" ./var/lib/codehub
cp Dockerfile "$work/"
tar --create --file=- -C "$work" Dockerfile rootfs.tar | build_image "$image" "$digest" -
