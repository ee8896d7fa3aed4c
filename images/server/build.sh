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
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

./rootfs.sh "$executable" "$work/rootfs.tar"
digest=$(digest_files Dockerfile build.sh -C "$work" rootfs.tar)
if is_current "$image" "$digest"; then
	echo "image: $image is up to date"
	exit 0
fi

echo "image: building $image (codehub on an empty base)"
cp Dockerfile "$work/"
tar --create --file=- -C "$work" Dockerfile rootfs.tar | build_image "$image" "$digest" -
