#!/usr/bin/env bash
# Every test of the packages, and says how long each group took.
#
#	test.sh "PACKAGES" [FLAGS of go test]
#
# The end-to-end tests run alone, before the others: they watch idle workspaces in
# real time, and a browser that other packages keep from the processor loses keys.
# Of the others three packages run at once, as the longest wait for Docker most of
# the time.
# The exhaustive tests of internal/lifecycle are pure and single-threaded: they run
# in full without the race detector, and thinned with it.
# On a machine where processes and memory are slow, the race detector is left out: with
# it the tests take longer there than CI allows. RACE=-race or RACE= decides instead.
# Fewer tests run at once there, as each of them would take longer than it waits. If the
# kernel allows it, memory comes in huge pages until the end of the run: a Go program then
# starts with half of the page faults.
# The messages of failed tests are repeated at the end, without the servers' logs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
# shellcheck disable=SC2086 # several patterns
packages=$(go list $1) || exit
failed=0

# start_time prints how many microseconds the start of a process takes.
start_time() {
	local i began ended
	began=${EPOCHREALTIME/[.,]/}
	for ((i = 0; i < 100; i++)); do
		/bin/true
	done
	ended=${EPOCHREALTIME/[.,]/}
	echo $(((ended - began) / 100))
}
huge_pages=/sys/kernel/mm/transparent_hugepage/enabled
huge_pages_before=
output=$(mktemp)
# shellcheck disable=SC2317,SC2329 # called by trap
clean_up() {
	rm -f "$output"
	[ -z "$huge_pages_before" ] || echo "$huge_pages_before" >"$huge_pages"
}
trap clean_up EXIT

together=() # flags of the end-to-end tests
packages_at_once=3
micros=$(start_time)
if [ "$micros" -gt 2500 ]; then
	echo "test: a process takes $micros µs to start on this machine, so fewer tests run at once, with huge pages"
	together=(-parallel 3)
	packages_at_once=2
	if [ -w "$huge_pages" ]; then
		huge_pages_before=$(sed 's/.*\[\(.*\)\].*/\1/' "$huge_pages")
		echo always >"$huge_pages"
	fi
	if [ -z "${RACE+set}" ]; then
		RACE=
		echo "test: without the race detector (RACE=-race: with it)"
	fi
fi
RACE=${RACE--race}
[ -n "$RACE" ] || export CGO_ENABLED=0 # as make check builds

# run TITLE FLAGS PACKAGES
run() {
	local title=$1 before=$SECONDS
	shift
	echo "test: $title"
	go test -count=1 -timeout 75m "$@" 2>&1 | tee -a "$output" || failed=1
	echo "test: $title: $((SECONDS - before)) s"
}

# only PATTERN: the packages that match
only() { grep -E "$1" <<<"$packages"; }

if only '/internal/e2e$' >/dev/null; then
	# shellcheck disable=SC2086 # no word if it is empty
	run "end to end" $RACE "${together[@]}" "${@:2}" "$(only '/internal/e2e$')"
fi
if only '/internal/lifecycle$' >/dev/null; then
	run "the rules in full" "${@:2}" "$(only '/internal/lifecycle$')"
fi
others='/internal/e2e$'
[ -n "$RACE" ] || others="$others|/internal/lifecycle\$"
rest=$(grep -Ev "$others" <<<"$packages")
if [ -n "$rest" ]; then
	# shellcheck disable=SC2086 # one word for each package
	run "all others" $RACE -p "$packages_at_once" "${@:2}" $rest
fi
if [ "$failed" != 0 ]; then
	echo "test: failed:"
	grep -E '^ *(--- FAIL: |FAIL: |panic: |[A-Za-z0-9_]+\.go:[0-9]+: )|^FAIL\s' "$output" | cut -c 1-400 | head -100
fi
exit "$failed"
