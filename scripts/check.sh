#!/usr/bin/env bash
# Formatting, go vet, staticcheck, and every test that needs neither Docker nor
# Chromium. A test says what it needs (internal/harness); one that uses Docker
# without saying so fails here, as no Docker responds.
#
#	check.sh STATICCHECK_PACKAGE@VERSION [FLAGS and PACKAGES of go test]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
# As the program is built. The linker takes less time than with cgo.
export CGO_ENABLED=0
export CODEHUB_TEST_WITHOUT="docker chromium" DOCKER_HOST=unix:///nonexistent/docker.sock

# in_memory reports whether temporary files may be in memory: there is enough of it, and
# programs run there (a container has 64 MB, and often no programs).
in_memory() {
	local probe available result=1
	available=$(df --output=avail -k /dev/shm 2>/dev/null | tail -n 1)
	[ "${available:-0}" -ge $((6 << 20)) ] || return
	probe=$(mktemp -p /dev/shm) || return
	cp /bin/true "$probe" && chmod +x "$probe" && "$probe" && result=0
	rm -f "$probe"
	return $result
}
# The path is constant, since it is part of what Go's cache of results knows.
if [ -z "${TMPDIR:-}" ] && in_memory; then
	export TMPDIR=/dev/shm
fi
failed=0
scripts/lint.sh "$1" quick || failed=1
echo "check: go test, without the tests that need Docker or Chromium"
go test -vet=off -timeout 10m "${@:2}" | grep -v '\[no test files\]$'
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
# These read what Go's cache of results does not know of: other packages and git.
go test -vet=off -count=1 -run '^Test(ImportGraph|Words|ErrorMessagesAreSentences)$' ./internal || failed=1
exit "$failed"
