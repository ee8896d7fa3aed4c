#!/usr/bin/env bash
# Sourced by the scripts that set a machine up.

die() {
	echo "setup: $*" >&2
	exit 1
}

can_be_root() { [ "$EUID" = 0 ] || command -v sudo >/dev/null; }

as_root() {
	if [ "$EUID" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

docker_answers() { docker version >/dev/null 2>&1; }
