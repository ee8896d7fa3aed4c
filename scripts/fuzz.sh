#!/usr/bin/env bash
# Runs every fuzz target of the packages for a few seconds, one after the other.
#
#	fuzz.sh SECONDS PACKAGES...
#
# A target that fails writes its input to testdata/fuzz of its package, where every
# later go test finds it.
#
# A target that fails without such an input is repeated once: on a busy machine the
# fuzzing engine can miss its own deadline.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export CGO_ENABLED=0 # as make test
seconds=$1 failed=0 targets=0
shift
output=$(mktemp)
trap 'rm -f "$output"' EXIT

# fuzz PACKAGE TARGET
fuzz() {
	go test -run '^$' -fuzz "^$2\$" -fuzztime "${seconds}s" "$1" 2>&1 | tee "$output"
}

while read -r package folder; do
	grep -qs '^func Fuzz' "$folder"/*_test.go || continue # not built for nothing
	while read -r target; do
		targets=$((targets + 1))
		fuzz "$package" "$target" || { ! grep -q 'Failing input written to' "$output" && fuzz "$package" "$target"; } || failed=1
	done < <(go test -list '^Fuzz' "$package" | grep '^Fuzz')
done < <(go list -f '{{.ImportPath}} {{.Dir}}' "$@")
echo "fuzz: $targets targets for $seconds s each: $SECONDS s"
exit "$failed"
