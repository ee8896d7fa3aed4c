#!/usr/bin/env bash
# Writes the files of a release of the last commit into dist/: archives of the server and of the
# client, packages, and their checksums. The same commit makes the same bytes, in any folder.
#
#	release.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
about=release

version=${1#v}
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and a release is made from a commit"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
DATE=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export SOURCE_DATE_EPOCH DATE VERSION=$version TZ=UTC LC_ALL=C CGO_ENABLED=0
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
src=$work/src dist=$work/dist
mkdir -p "$src" "$dist"
git archive HEAD | tar -x -C "$src"

flags=(-buildvcs=false -trimpath -gcflags=all=-dwarf=false -ldflags "-s -w -X main.version=$version")

# dated gives everything below a folder the time of the commit.
dated() { find "$1" -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" {} +; }

# packed ARCHIVE FOLDER packs a folder of $work/stage as a .tar.gz or .zip.
packed() {
	dated "$work/stage/$2"
	case $1 in
	*.zip) (cd "$work/stage" && find "$2" | sort | zip --quiet -X -@ "$dist/$1") ;;
	*) tar --create --sort=name --owner=0 --group=0 --numeric-owner --format=gnu -C "$work/stage" "$2" | gzip --no-name -9 >"$dist/$1" ;;
	esac
}

# client OS ARCH builds and packs the client for one system.
client() {
	local name=codehub-cli_${version}_$1_$2 program=codehub archive=tar.gz
	[ "$1" != windows ] || program=codehub.exe archive=zip
	mkdir -p "$work/stage/$name"
	(cd "$src" && GOOS=$1 GOARCH=$2 go build "${flags[@]}" -o "$work/stage/$name/$program" ./cmd/codehub-cli)
	cp LICENSE "$work/licences/client/copyright" "$work/stage/$name/"
	packed "$name.$archive" "$name"
}

# server ARCH builds the server for one processor.
server() {
	(cd "$src" && rm -rf bin && GOARCH=$1 scripts/build.sh "$version")
	local name=codehub_${version}_linux_$1
	local root=$work/stage/$name
	mkdir -p "$root"/{bin,share/codehub/clients,share/codehub/package}
	cp "$src/bin/codehub" "$root/bin/"
	cp "$dist"/codehub-cli_*.tar.gz "$dist"/codehub-cli_*.zip "$root/share/codehub/clients/"
	cp -r "$src"/deploy/package/{codehub.service,codehub.env,codehub-admin,60-codehub.conf} "$root/share/codehub/package/"
	cp LICENSE CHANGELOG.md README.md "$work/licences/server/copyright" "$root/"
	packed "$name.tar.gz" "$name"

	export STAGE=$work/deb/$1 ARCH=$1
	mkdir -p "$STAGE"/usr/{bin,sbin,lib/systemd/system,lib/sysctl.d,share/codehub,share/doc/codehub,share/man/man1,share/bash-completion/completions}
	cp "$root/bin/codehub" "$STAGE/usr/bin/"
	cp "$src/deploy/package/codehub-admin" "$STAGE/usr/sbin/"
	cp "$src/deploy/package/codehub.service" "$STAGE/usr/lib/systemd/system/"
	cp "$src/deploy/package/60-codehub.conf" "$STAGE/usr/lib/sysctl.d/"
	cp -r "$root/share/codehub/clients" "$STAGE/usr/share/codehub/"
	documents codehub "$work/licences/server/copyright"
	package deploy/package/nfpm.yaml
}

# documents NAME COPYRIGHT lays what a package has besides its programs.
documents() {
	gzip --no-name -9 <"$src/CHANGELOG.md" >"$STAGE/usr/share/doc/$1/changelog.gz"
	cp "$2" "$STAGE/usr/share/doc/$1/copyright"
	gzip --no-name -9 <"$src/deploy/package/codehub.1" >"$STAGE/usr/share/man/man1/codehub.1.gz"
	cp "$work/completion/bash" "$STAGE/usr/share/bash-completion/completions/codehub"
	dated "$STAGE"
}

package() {
	local kind
	for kind in deb rpm; do
		(cd "$src" && "$work/nfpm" package --config "$1" --packager "$kind" --target "$dist/" >/dev/null) || die "nfpm failed for $1"
	done
}

client_package() {
	export STAGE=$work/cli/$1 ARCH=$1
	mkdir -p "$STAGE"/usr/{bin,share/doc/codehub-cli,share/man/man1,share/bash-completion/completions}
	cp "$work/stage/codehub-cli_${version}_linux_$1/codehub" "$STAGE/usr/bin/"
	documents codehub-cli "$work/licences/client/copyright"
	package deploy/package/nfpm-cli.yaml
}

# licences PROGRAM TARGET collects the licences of the modules that a program contains.
licences() {
	mkdir -p "$work/licences/$2"
	{
		printf 'codehub is distributed under the terms of the Apache License 2.0, which are in\n/usr/share/common-licenses/Apache-2.0 and in LICENSE. It contains these modules:\n'
		(cd "$src" && for os in linux darwin windows; do
			[ "$2" = client ] || [ $os = linux ] || continue
			GOOS=$os go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "$1"
		done) | sort -u | while read -r path v dir; do
			printf '\n\n%s\n%s %s\n\n' "$(printf '=%.0s' {1..72})" "$path" "$v"
			find "$dir" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | xargs --no-run-if-empty cat
		done
	} >"$work/licences/$2/copyright"
}

prepare() {
	touch "$src/internal/runtime/agent/program/codehub-agent.gz" # go list wants it
	(cd "$src" && GOBIN=$work GOFLAGS=-trimpath go install "$NFPM" && go build "${flags[@]}" -o "$work/codehub-host" ./cmd/codehub-cli)
	mkdir -p "$work/completion"
	"$work/codehub-host" completion bash >"$work/completion/bash"
	licences ./cmd/codehub-cli client
	licences ./cmd/codehub server
}

clients() {
	local system
	for system in linux darwin windows; do
		client $system amd64
		client $system arm64
	done
}

sums() {
	(cd "$dist" && sha256sum -- * >"$work/checksums.txt" && mv "$work/checksums.txt" .)
	rm -rf dist && mv "$dist" dist
}

say() { echo "$about: $*"; }

say tools and licences
prepare
say the client for six systems
clients
for arch in amd64 arm64; do
	say the server and the packages, "$arch"
	server $arch
	client_package $arch
done
sums
say "dist/ has $(find dist -type f | wc -l) files"
