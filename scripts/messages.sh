#!/usr/bin/env bash
# Sourced by the scripts that set a machine up and build codehub. They may set about,
# with which the messages begin.

die() {
	echo "${about:-setup}: $*" >&2
	exit 1
}

# timed TEXT COMMAND… runs a command and prints one line: the text, and the seconds that
# it took. The output of the command goes to a log, whose end is shown if it fails.
timed() {
	local text=$1 start=$SECONDS status=0 log
	shift
	log=$(mktemp)
	printf '%s: %s: ' "${about:-setup}" "$text"
	"$@" >"$log" 2>&1 </dev/null || status=$?
	if [ "$status" = 0 ]; then
		printf '%s\n' "$(seconds $((SECONDS - start)))"
	else
		printf 'failed after %s\n' "$(seconds $((SECONDS - start)))"
		tail -n 40 "$log" >&2
	fi
	rm -f "$log"
	return "$status"
}

# seconds N prints a duration as "N s", or from a minute on as "M min S s".
seconds() {
	if [ "$1" -lt 60 ]; then
		echo "$1 s"
	else
		echo "$(($1 / 60)) min $(($1 % 60)) s"
	fi
}

can_be_root() { [ "$EUID" = 0 ] || command -v sudo >/dev/null; }

as_root() {
	if [ "$EUID" = 0 ]; then
		"$@"
	else
		sudo ${in_background:+-n} "$@" # without asking for a password there
	fi
}

docker_answers() { docker version >/dev/null 2>&1; }
