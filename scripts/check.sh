#!/usr/bin/env bash
# Formatting, go vet, staticcheck, and every test that needs neither Docker nor
# Chromium. A test says what it needs (internal/harness); one that uses Docker
# without saying so fails here, as no Docker responds.
#
#	check.sh STATICCHECK_PACKAGE@VERSION [FLAGS and PACKAGES of go test]
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export CODEHUB_TEST_WITHOUT="docker chromium" DOCKER_HOST=unix:///nonexistent/docker.sock
failed=0
scripts/lint.sh "$1" quick || failed=1
echo "check: go test, without the tests that need Docker or Chromium"
go test -vet=off -timeout 10m "${@:2}" | grep -v '\[no test files\]$'
[ "${PIPESTATUS[0]}" = 0 ] || failed=1
# These read what Go's cache of results does not know of: other packages and git.
go test -vet=off -count=1 -run '^Test(ImportGraph|Words|ErrorMessagesAreSentences)$' ./internal || failed=1
exit "$failed"
