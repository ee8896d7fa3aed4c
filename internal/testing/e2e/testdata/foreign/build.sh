#!/usr/bin/env bash
# Builds the images of foreign_test.go, REPOSITORY:STAGE for each stage of the Dockerfile,
# unless the present ones were built from the same inputs.
#
#	build.sh REPOSITORY WORKSPACE_IMAGE STAGE…
set -euo pipefail
cd "$(dirname "$0")"
source ../../../../../scripts/image.sh
repository=$1
workspace=$2
shift 2
base=codehub/debian:bookworm # images/workspace/build.sh makes it

digest=$(digest_files Dockerfile build.sh ./*.c evil musl-etc)-$(image_id "$base" | tail -c 13)
arguments=(--build-arg "BASE=$base" --build-arg "WORKSPACE=$workspace")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[ -z "${!name:-}" ] || arguments+=(--build-arg "$name")
done
for stage; do
	if ! is_current "$repository:$stage" "$digest"; then
		build_image "$repository:$stage" "$digest" "${arguments[@]}" --target "$stage" .
	fi
done
docker image prune --force --filter label=codehub.stage=foreign-programs >/dev/null
