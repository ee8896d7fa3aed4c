#!/usr/bin/env bash
# Formatting, go vet, staticcheck, and every test of the tier check, which uses neither
# Docker nor Chromium. A test says what it needs (internal/testing/harness); one that uses Docker
# without saying so fails here, as no Docker responds.
#
#	check.sh STATICCHECK_PACKAGE@VERSION "PACKAGES" [FLAGS of go test]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source scripts/gotestsum.sh
export CODEHUB_TEST_TIER=check DOCKER_HOST=unix:///nonexistent/docker.sock

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
scripts/lint.sh "$1" quick || failed=1
# shellcheck disable=SC2086 # several patterns
run "without Docker and Chromium" "${@:3}" $2
# These read what Go's cache of results does not know of: other packages and git.
run "the source" -count=1 -run '^Test(ImportGraph|Words|ErrorMessagesAreSentences)$' ./internal
finish
