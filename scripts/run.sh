#!/usr/bin/env bash
# Does what comes before the server of make run: installs what is missing and starts Docker,
# and builds codehub at the same time. Then it begins to fetch what the images are made from.
#
#	run.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh build
first=''
[ -e bin/codehub ] || first=1
log=$(mktemp)
set -m # in a process group, so that Ctrl-C and a failure of the setup end all of it
scripts/build.sh "$1" >"$log" 2>&1 &
build=$!
set +m
trap 'kill -- "-$build" 2>/dev/null || true; rm -f "$log"' EXIT

scripts/setup.sh run
# On its own from now on. It leaves the processors to the build, and Docker must run.
if [ -n "$first" ]; then
	(setsid --fork nice -n 19 images/build.sh fetch >/dev/null 2>&1 </dev/null)
fi
tail --quiet --lines=+1 --follow --sleep-interval=0.1 --pid="$build" "$log"
wait "$build"
trap 'rm -f "$log"' EXIT
