#!/usr/bin/env bash
# Sourced by the image builds: an image carries the digest of what it was built
# from, so that a build whose inputs did not change is skipped.

umask 022 # what goes into an image is readable by its user, whoever builds it

# shellcheck source=scripts/messages.sh
source "$(dirname "${BASH_SOURCE[0]}")/messages.sh"
about=image
inputs_label=codehub.inputs

# digest_files prints one digest over names, modes and contents of everything under
# the given paths. What a path is called on this machine does not count.
digest_files() {
	tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a+rX,go-w --file=- "$@" | sha256sum | cut -d' ' -f1
}

# is_current IMAGE DIGEST succeeds when the image was built from these inputs.
is_current() {
	[ "$(docker image inspect --format "{{ index .Config.Labels \"$inputs_label\" }}" "$1" 2>/dev/null)" = "$2" ]
}

# image_id NAME prints the id of the image with that name, or nothing.
image_id() {
	docker image inspect --format '{{.Id}}' "$1" 2>/dev/null || true
}

# drop_replaced NAME OLD_ID removes the image that had the name before.
drop_replaced() {
	if [ -n "$2" ] && [ "$2" != "$(image_id "$1")" ]; then
		docker image rm "$2" >/dev/null 2>&1 || true # a container may still use it
	fi
}

# plan N says how many steps a build has, and step TEXT begins the next: images/build.sh
# describes the lines. A build without a plan shows the steps of its Dockerfile.
plan() { steps=$1 at=0; }
step() {
	at=$((at + 1))
	[ "$at" -le "$steps" ] || steps=$at
	echo "step $at/$steps $*"
}

# build_image IMAGE DIGEST [docker build arguments] builds an image.
build_image() {
	local image=$1 digest=$2 old
	shift 2
	old=$(image_id "$image")
	build --tag "$image" --label "$inputs_label=$digest" "$@"
	drop_replaced "$image" "$old"
}

# build [docker build arguments] builds with the builder that every engine has. In a build
# with a plan a line "step: TEXT" of a command begins the next step. Without one only the
# steps of the Dockerfile are shown, and all it says if it fails.
build() {
	if [ -n "${steps:-}" ]; then
		with_steps env DOCKER_BUILDKIT=0 docker build --force-rm "$@" || die "the build failed (see above)"
		return
	fi
	local log status=0
	log=$(mktemp)
	DOCKER_BUILDKIT=0 docker build --force-rm "$@" 2>&1 | tee "$log" |
		{ grep --line-buffered -E '^Step [0-9/]+ : (RUN|FROM|ADD|COPY)' || true; } | cut -c 1-120 || status=$?
	[ "$status" = 0 ] || tail -n 60 "$log" >&2
	rm -f "$log"
	[ "$status" = 0 ] || die "the build failed (see above)"
}

# run CONTAINER starts a container and waits for its end. A line "step: TEXT" of its output
# begins the next step.
run() {
	with_steps docker start --attach "$1" || die "the build failed (see above)"
}

# with_steps COMMAND… shows the output of a command, and each line "step: TEXT" as a step.
with_steps() {
	local line
	while IFS= read -r line; do
		case $line in
		'step: '*) step "${line#step: }" ;;
		*) printf '%s\n' "$line" ;;
		esac
	done < <("$@" 2>&1)
	wait "$!"
}
