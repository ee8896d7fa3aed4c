#!/usr/bin/env bash
# Every test of the packages, and says how long each group took.
#
#	test.sh "PACKAGES" [FLAGS of go test]
#
# The end-to-end tests run alone, after the others: they watch idle workspaces in
# real time, and a browser that other packages keep from the processor loses keys.
# Of the others three packages run at once, as the longest wait for Docker most of
# the time.
# The exhaustive tests of internal/lifecycle are pure and single-threaded: they run
# in full without the race detector, and thinned with it.
# On a slow machine all that takes longer than CI allows. There the race detector and the
# tests that are marked as long are left out, which the run says, fewer tests and packages
# run at once, as each would take longer than it waits, and memory comes in huge pages
# until the end of the run, with which a Go program starts with half of the page faults.
# SLOW=0 and SLOW=1 decide what is otherwise measured.
# CODEHUB_TEST_UNTIL (seconds since 1970), which CI sets, is when no more end-to-end tests
# begin. They run in random order, so that each of them is left out in some runs only.
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
CODEHUB_TEST_LEFT_OUT=$(mktemp)
export CODEHUB_TEST_LEFT_OUT
# shellcheck disable=SC2317,SC2329 # called by trap
clean_up() {
	rm -f "$output" "$CODEHUB_TEST_LEFT_OUT"
	[ -z "$huge_pages_before" ] || echo "$huge_pages_before" >"$huge_pages"
}
trap clean_up EXIT

flags=(-race)
together=() # flags of the end-to-end tests
packages_at_once=3
if [ -z "${SLOW:-}" ]; then
	micros=$(start_time)
	SLOW=$((micros > 2500))
	[ "$SLOW" = 0 ] || echo "test: this is a slow machine: a process takes $micros µs to start (SLOW=0: treat it as a fast one)"
fi
if [ "$SLOW" = 1 ]; then
	flags=(-short)
	export CGO_ENABLED=0 # as make check builds
	packages_at_once=2
	if [ -w "$huge_pages" ]; then
		huge_pages_before=$(sed 's/.*\[\(.*\)\].*/\1/' "$huge_pages")
		echo always >"$huge_pages"
	fi
	echo "test: left out on a slow machine: the race detector, and" \
		"$(git grep -B 1 '^	harness\.Long(t)$' internal | sed -n 's/^internal\/\(.*\)\/[^/]*-func \(Test[A-Za-z0-9]*\).*/\1.\2/p' | xargs)"
fi

# run TITLE FLAGS PACKAGES
run() {
	local title=$1 before=$SECONDS
	shift
	echo "test: $title"
	go test -count=1 -timeout 60m "$@" 2>&1 | tee -a "$output" || failed=1
	echo "test: $title: $((SECONDS - before)) s"
}

# only PATTERN: the packages that match
only() { grep -E "$1" <<<"$packages"; }

if only '/internal/lifecycle$' >/dev/null; then
	run "the rules in full" "${@:2}" "$(only '/internal/lifecycle$')"
fi
others='/internal/e2e$'
[ "$SLOW" = 0 ] || others="$others|/internal/lifecycle\$"
rest=$(grep -Ev "$others" <<<"$packages")
if [ -n "$rest" ]; then
	# shellcheck disable=SC2086 # one word for each package
	run "all but end to end" "${flags[@]}" -p "$packages_at_once" "${@:2}" $rest
fi
if only '/internal/e2e$' >/dev/null; then
	[ -z "${CODEHUB_TEST_UNTIL:-}" ] || together+=(-shuffle on)
	run "end to end" "${flags[@]}" "${together[@]}" "${@:2}" "$(only '/internal/e2e$')"
	if [ -s "$CODEHUB_TEST_LEFT_OUT" ]; then
		echo "test: left out, as the time for tests was over before their turn came:" \
			"$(sort "$CODEHUB_TEST_LEFT_OUT" | xargs)"
	fi
fi
if [ "$failed" != 0 ]; then
	echo "test: failed:"
	grep -E '^ *(--- FAIL: |FAIL: |panic: |[A-Za-z0-9_]+\.go:[0-9]+: )|^FAIL\s' "$output" | cut -c 1-400 | head -100
fi
exit "$failed"
