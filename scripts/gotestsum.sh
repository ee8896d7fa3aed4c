#!/usr/bin/env bash
# Sourced by the scripts that run tests: runs go test by gotestsum, and reports.

export CGO_ENABLED=0 # as make build, and the linker takes less time
gotestsum=gotest.tools/gotestsum@v1.13.0
go run "$gotestsum" --version >/dev/null || exit # builds it, with its messages
results=$(mktemp) failed=0
trap 'rm -f "$results" "$results".*' EXIT

# run TITLE FLAGS PACKAGES runs tests, and prints a line for each package as it ends.
run() {
	local title=$1 before=$SECONDS
	shift
	echo "test: $title"
	go run "$gotestsum" --format pkgname --format-hide-empty-pkg --hide-summary all --jsonfile "$results.now" -- \
		-vet=off -timeout 30m "$@" 2>&1 | grep --line-buffered -vE '^DONE |^exit status |^$'
	[ "${PIPESTATUS[0]}" = 0 ] || failed=1
	cat "$results.now" >>"$results"
	echo "test: $title: $((SECONDS - before)) s"
}

# finish prints the slowest tests and, last, what failed, and exits.
finish() {
	[ -s "$results" ] || { echo "test: no package has a test" && exit 1; }
	echo "test: the slowest ten tests:"
	go run "$gotestsum" tool slowest --jsonfile "$results" --threshold 1s | awk 'NR <= 10'
	go run "$gotestsum" --format none --hide-summary skipped --raw-command -- cat "$results"
	exit "$failed"
}

# left_to_verify prints the tests that only make verify runs, as package.Test.
left_to_verify() {
	git grep -p '^	*harness\.Verify(t)$' -- '*_test.go' |
		sed -nE 's/^(internal\/)?(.*)\/[^/]*_test\.go=func (Test[A-Za-z0-9_]*).*/\2.\3/p' | sort -u
}
