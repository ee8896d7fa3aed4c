#!/usr/bin/env bash
# Sourced by the image builds: an image carries the digest of what it was built
# from, so that a build whose inputs did not change is skipped.

umask 022 # what goes into an image is readable by its user, whoever builds it

inputs_label=codehub.inputs

die() {
	echo "image: $*" >&2
	exit 1
}

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

# build_image IMAGE DIGEST [docker build arguments] builds with the builder that
# every engine has, and shows its steps; all it says is shown when it fails.
build_image() {
	local image=$1 digest=$2 old log
	shift 2
	old=$(image_id "$image")
	log=$(mktemp)
	if ! DOCKER_BUILDKIT=0 docker build --force-rm --tag "$image" --label "$inputs_label=$digest" "$@" 2>&1 |
		tee "$log" | { grep --line-buffered -E '^(Step [0-9/]+ : (RUN|FROM|ADD|COPY)|install: )' || true; } | cut -c 1-120; then
		tail -n 60 "$log" >&2
		rm -f "$log"
		die "building $image failed (see above)"
	fi
	rm -f "$log"
	drop_replaced "$image" "$old"
}
