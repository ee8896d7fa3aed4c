#!/usr/bin/env bash
# Checks the source; runs every check and fails if one did.
#
#	lint.sh STATICCHECK_PACKAGE@VERSION          all of them
#	lint.sh STATICCHECK_PACKAGE@VERSION quick    formatting, vet, staticcheck
set -uo pipefail
cd "$(dirname "$0")/.." || exit
staticcheck=$1
# As check.sh, so that each finds in Go's cache what the other has built.
export CGO_ENABLED=0
failed=0

formatting() {
	echo "lint: gofmt"
	local files
	files=$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0 -r gofmt -l) || return
	if [ -n "$files" ]; then
		echo "these need gofmt -w:"
		echo "$files"
		return 1
	fi
}

vet() {
	echo "lint: go vet"
	go vet ./... && go vet -tags projectvm ./internal/runtime/docker/homequota &&
		GOOS=windows go vet ./cmd/codehub-cli && GOOS=darwin go vet ./cmd/codehub-cli
}

static_analysis() {
	echo "lint: staticcheck ${staticcheck#*@}"
	go run "$staticcheck" ./...
}

shell_scripts() {
	echo "lint: shellcheck"
	git ls-files -z --cached --others --exclude-standard '*.sh' .ci/run |
		xargs -0 -r shellcheck --external-sources --source-path=SCRIPTDIR
}

# The test may sit in any package; that there is none is a failure, too.
import_graph() {
	echo "lint: import graph"
	local file
	file=$(git grep --untracked -l 'func TestImportGraph(' -- '*_test.go') || {
		echo "there is no TestImportGraph"
		return 1
	}
	go test -count=1 -run '^TestImportGraph$' "./$(dirname "$file")"
}

# What people read is in the words of scripts/words.txt, and messages are sentences.
texts() {
	echo "lint: words and messages"
	go test -count=1 -run '^Test(Words|Comments|ErrorMessagesAreSentences)$' ./internal
}

# "package: imperative summary", at most 72 characters; older commits are as they are.
commit_subjects() {
	echo "lint: commit subjects"
	local hash subject bad=0
	while read -r hash subject; do
		if [[ ! $subject =~ ^[A-Za-z0-9/._-]+:\ [a-z].*[^.]$ ]] || [ ${#subject} -gt 72 ]; then
			echo "$hash is not \"package: imperative summary\" of at most 72 characters: $subject"
			bad=1
		fi
	done < <(git log --no-merges --since=2026-11-22T14:00:00Z --format='%h %s')
	return $bad
}

formatting || failed=1
vet || failed=1
static_analysis || failed=1
if [ "${2:-}" = quick ]; then
	exit "$failed"
fi
shell_scripts || failed=1
import_graph || failed=1
texts || failed=1
commit_subjects || failed=1
exit "$failed"
