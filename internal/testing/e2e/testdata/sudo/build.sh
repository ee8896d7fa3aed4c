#!/usr/bin/env bash
# Builds the image of sudo_test.go: a workspace image with sudo, set up by the line of
# images/workspace/Dockerfile. Skipped when the present image was built from the same inputs.
#
#	build.sh IMAGE WORKSPACE_IMAGE
set -euo pipefail
cd "$(dirname "$0")"
source ../../../../../scripts/image.sh
image=$1
base=$2

sudoers=$(sed -nE "s/^.*echo '(coder ALL=[^']*)' > \/etc\/sudoers\.d\/coder.*$/\1/p" ../../../../../images/workspace/Dockerfile)
[ -n "$sudoers" ] || die "images/workspace/Dockerfile has no line for /etc/sudoers.d/coder"
digest=$(digest_files Dockerfile build.sh)-$(printf %s "$sudoers" | sha256sum | cut -c 1-12)-$(image_id "$base" | tail -c 13)
arguments=(--build-arg "BASE=$base" --build-arg "SUDOERS=$sudoers")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[ -z "${!name:-}" ] || arguments+=(--build-arg "$name")
done
if ! is_current "$image" "$digest"; then
	build_image "$image" "$digest" "${arguments[@]}" .
fi
