#!/usr/bin/env bash
# Makes codehub's images, each only if it is missing or was built from other inputs.
# FORCE=1 makes them anyway, with Debian's current security updates; with SUDO=1 the
# images of workspaces have sudo. IMAGE_ARCH=arm64 or amd64 makes them for that processor, with
# its name as their tag; Docker has to run programs for it, by itself or with qemu-user.
#
#	build.sh list                 prints a line for each image, in the order in which
#	                              they are made: NAME, a tab, IMAGE
#	build.sh make NAME [IMAGE]    makes one. Prints "step K/N TEXT" when a step begins;
#	                              all other lines are a log
#	build.sh fetch                begins with the first of them: fetches npm packages, and
#	                              makes the base
#	build.sh show [NAME…]         makes these images, or all, and prints a line for each
#	                              step with its seconds; the end of the log if one fails
set -euo pipefail
cd "$(dirname "$0")"
if ! docker version >/dev/null 2>&1 && [ "${1:-}" != list ] && [ -z "${in_group_docker:-}" ]; then
	in_group_docker=1 exec ../scripts/with-docker.sh images/build.sh "$@"
fi
source ../scripts/messages.sh
about=image

tag=${IMAGE_ARCH:-latest}
images="ide	codehub/ide:$tag
slim	codehub/workspace-slim:$tag
full	codehub/workspace:$tag"

image_of() { awk -F '\t' -v name="$1" '$1 == name { print $2 }' <<<"$images"; }

make_image() { # NAME [IMAGE]
	local image
	image=$(image_of "$1")
	[ -n "$image" ] || die "there is no image $1: see images/build.sh list"
	image=${2:-$image}
	case $1 in
	ide) exec ide/build.sh "$image" ;;
	*) exec workspace/build.sh "$1" "$image" ;;
	esac
}

# show_image makes an image and prints its steps.
show_image() { # NAME
	local log text='' begin=$SECONDS start=$SECONDS line status=0
	log=$(mktemp)
	while IFS= read -r line; do
		printf '%s\n' "$line" >>"$log"
		[[ $line =~ ^step\ [0-9]+/[0-9]+\ (.*) ]] || continue
		[ -z "$text" ] || seconds $((SECONDS - begin))
		text=${BASH_REMATCH[1]} begin=$SECONDS
		printf 'image: %s: %s: ' "$1" "$text"
	done < <(./build.sh make "$1" 2>&1 || echo "$?" >"$log.status")
	[ ! -e "$log.status" ] || status=$(cat "$log.status")
	if [ "$status" != 0 ]; then
		[ -z "$text" ] || echo 'failed'
		tail -n 60 "$log" >&2
	elif [ -z "$text" ]; then
		echo "image: $(image_of "$1") is up to date"
	else
		seconds $((SECONDS - begin))
		echo "image: $(image_of "$1") is ready, in $(seconds $((SECONDS - start)))"
	fi
	rm -f "$log" "$log.status"
	return "$status"
}

case ${1:-} in
list) echo "$images" ;;
make) make_image "${@:2}" ;;
fetch)
	ide/build.sh "$(image_of ide)" fetch
	;;
show)
	shift
	[ $# -gt 0 ] || read -ra names -d '' <<<"$(cut -f 1 <<<"$images")" || true
	for name in "${names[@]:-$@}"; do
		show_image "$name" || die "$name was not made"
	done
	;;
*) die "usage: images/build.sh list | make NAME [IMAGE] | fetch | show [NAME…]" ;;
esac
