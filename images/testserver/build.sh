#!/usr/bin/env bash
# Builds codehub/testserver:latest, the small stand-in for code-server that most
# tests run, unless the present image was built from the same inputs.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
image=${1:-codehub/testserver:latest}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

CGO_ENABLED=0 GOOS=linux go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$work/testserver" .
digest=$(digest_files Dockerfile build.sh home -C "$work" testserver)
if is_current "$image" "$digest"; then
	echo "image: $image is up to date"
	exit 0
fi

begin=$SECONDS
mkdir -p "$work/root/etc" "$work/root/tmp" "$work/root/home/coder/project"
cp -R home/. "$work/root/home/coder/"
chmod 600 "$work/root/home/coder/.config/testserver/settings.json"
chmod 1777 "$work/root/tmp"
mv "$work/testserver" "$work/root/"
printf '%s\n' 'root:x:0:0:root:/root:/testserver' 'coder:x:1000:1000:coder:/home/coder:/testserver' >"$work/root/etc/passwd"
printf '%s\n' 'root:x:0:' 'coder:x:1000:' >"$work/root/etc/group"

tar --create --file="$work/rootfs.tar" --sort=name --owner=0 --group=0 --numeric-owner \
	--exclude=./home/coder -C "$work/root" .
tar --append --file="$work/rootfs.tar" --sort=name --owner=1000 --group=1000 --numeric-owner \
	-C "$work/root" ./home/coder
cp Dockerfile "$work/"
tar --create --file=- -C "$work" Dockerfile rootfs.tar | build_image "$image" "$digest" - >/dev/null
echo "image: $image is ready, in $(seconds $((SECONDS - begin)))"
