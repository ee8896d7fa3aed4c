#!/usr/bin/env bash
# Runs the tests of a tier (internal/testing/harness/needs.go), prints the slowest ten of them, and
# repeats at the end what failed.
#
#	test.sh TIER "PACKAGES" [FLAGS of go test]
#
# The end-to-end tests run after the others, because a browser that other packages keep from
# the processor loses keys. Of the others, two packages run at once.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source scripts/gotestsum.sh
export CODEHUB_TEST_TIER=$1
# shellcheck disable=SC2086 # several patterns
packages=$(go list $2) || exit

if [ "$1" = test ]; then
	echo "test: left to make verify: $(left_to_verify | xargs)"
fi
others=$(grep -v '/internal/testing/e2e$' <<<"$packages")
# shellcheck disable=SC2086 # one word for each package
[ -z "$others" ] || run "all but end to end" -count=1 -p 2 "${@:3}" $others
! grep -q '/internal/testing/e2e$' <<<"$packages" || run "end to end" -count=1 "${@:3}" codehub/internal/testing/e2e
finish
