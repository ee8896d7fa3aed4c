#!/usr/bin/env bash
# Writes the files of the server's image as a tar archive: bin/codehub and bin/codehub-agent, and the
# certificates of public authorities. The same files make the same bytes.
#
#	rootfs.sh EXECUTABLE OUT
set -euo pipefail
source "$(dirname "$0")/../../scripts/messages.sh"
# shellcheck disable=SC2034 # of messages.sh
about=image
umask 022
executable=$1 out=$2
authorities=/etc/ssl/certs/ca-certificates.crt

agent=$(dirname "$executable")/codehub-agent # what workspaces mount
for file in "$executable" "$agent"; do
	[ -x "$file" ] || die "$file is missing: run make build"
done
[ -r "$authorities" ] || die "$authorities is missing: install the package ca-certificates"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

mkdir -p "$root/usr/local/bin" "$root/opt/codehub" "$root/etc/ssl/certs" "$root/tmp" "$root/var/lib/codehub"
cp "$executable" "$root/usr/local/bin/codehub"
cp "$agent" "$root/opt/codehub/codehub"
cp "$authorities" "$root/etc/ssl/certs/"
printf '%s\n' 'root:x:0:0:root:/root:/sbin/nologin' 'codehub:x:65532:65532:codehub:/var/lib/codehub:/sbin/nologin' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'codehub:x:65532:' >"$root/etc/group"
chmod 1777 "$root/tmp"
packed=(--file="$out" --sort=name --mtime="@${SOURCE_DATE_EPOCH:-0}" --numeric-owner --format=gnu -C "$root")
tar --create --owner=0 --group=0 --exclude=./var/lib/codehub "${packed[@]}" .
tar --append --owner=65532 --group=65532 "${packed[@]}" ./var/lib/codehub
