#!/usr/bin/env bash
# Builds bin/codehub-agent, and bin/codehub, which contains it.
#
#	build.sh [VERSION]
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
about=build

version=${1:-dev}
compressed=internal/runtime/agent/program/codehub-agent.gz
export CGO_ENABLED=0
# The compiler takes a sixth less time if it collects garbage less often, and a quarter more memory.
if [ -z "${GOGC:-}" ] && [ "$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)" -gt 4000000 ]; then
	export GOGC=400
fi
linked="-s -w -X main.version=$version"
# The default images of a release: see scripts/release-images.sh.
[ -z "${RELEASE_IDE_IMAGE:-}" ] || linked+=" -X codehub/internal/server/config.ideImage=$RELEASE_IDE_IMAGE"
[ -z "${RELEASE_WORKSPACE_IMAGE:-}" ] || linked+=" -X codehub/internal/server/config.workspaceImage=$RELEASE_WORKSPACE_IMAGE"
flags=(-buildvcs=false -trimpath -gcflags=all=-dwarf=false -tags agent -ldflags "$linked")

list() { go list -deps "${flags[@]}" "$@"; }
fetch() { list ./cmd/codehub-agent ./cmd/codehub >/dev/null; }

# compile compiles all packages of both executables that do not contain the agent: at once,
# so that all cores have work until the end.
compile() {
	local packages
	packages=$(list -f '{{if not (or .Standard (eq .Name "main"))}}{{.ImportPath}}{{range .Deps}} {{.}}{{end}}{{end}}' ./cmd/codehub-agent ./cmd/codehub |
		awk '!/codehub\/internal\/runtime\/agent\/program/ { print $1 }') || return
	# shellcheck disable=SC2086 # a list
	go build "${flags[@]}" $packages
}

compress() {
	if ! gzip --decompress --stdout "$compressed" 2>/dev/null | cmp --silent - bin/codehub-agent; then
		gzip --no-name --stdout bin/codehub-agent >"$compressed.new" && mv "$compressed.new" "$compressed"
	fi
}

finish() {
	go build "${flags[@]}" -o bin/codehub-agent ./cmd/codehub-agent &&
		compress &&
		go build "${flags[@]}" -o bin/codehub ./cmd/codehub
}

mkdir -p bin
[ -e "$compressed" ] || : >"$compressed" # go list wants it as well
if [ ! -e bin/codehub ] || [ go.sum -nt bin/codehub ]; then
	# First, so that the seconds of the network are not those of the compiler.
	timed "fetch Go modules" fetch || exit 1
	timed "compile" compile || exit 1
fi
timed "bin/codehub $version" finish || exit 1
