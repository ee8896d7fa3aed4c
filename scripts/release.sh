#!/usr/bin/env bash
# Writes the files of a release of the last commit into dist/: archives of the server and of the
# client, packages, a bill of materials, and their checksums. The same commit and version make the
# same bytes, in any folder.
#
#	release.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
about=release

version=${1#v}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || die "$version is no version; tag the commit, say git tag --annotate v0.1.0, or give make release VERSION=v0.1.0"
# A commit after a tag comes after that release for dpkg and rpm as well.
package_version=$(sed -E 's/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/' <<<"$version")
MAINTAINER="The developers of codehub <codehub@codehub.example>"
NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and a release is made from a commit"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
DATE=$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
export SOURCE_DATE_EPOCH DATE VERSION=$package_version MAINTAINER TZ=UTC LC_ALL=C CGO_ENABLED=0
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
	cp "$src/LICENSE" "$work/licences/client/copyright" "$work/stage/$name/"
	packed "$name.$archive" "$name"
}

# server ARCH builds the server for one processor.
server() {
	local defaults name=codehub_${version}_linux_$1
	defaults=$(scripts/release-images.sh defaults "$version" "$1")
	# shellcheck disable=SC2086 # NAME=VALUE, without spaces
	(cd "$src" && rm -rf bin && env GOARCH="$1" $defaults scripts/build.sh "$version")
	local root=$work/stage/$name
	mkdir -p "$root"/{bin,share/codehub/clients,share/codehub/package}
	cp "$src/bin/codehub" "$root/bin/"
	cp "$dist"/codehub-cli_*.tar.gz "$dist"/codehub-cli_*.zip "$root/share/codehub/clients/"
	cp -r "$src"/deploy/package/{codehub.service,codehub.env,codehub-admin,60-codehub.conf} "$root/share/codehub/package/"
	sed -i 's|/usr/bin/codehub|/usr/local/bin/codehub|' "$root"/share/codehub/package/codehub{.service,-admin}
	cp "$src"/{LICENSE,CHANGELOG.md,README.md} "$work/licences/server/copyright" "$root/"
	packed "$name.tar.gz" "$name"
	cp "$src/bin/codehub-agent" "$work/programs/codehub-agent_$1"
}

server_package() {
	local root=$work/stage/codehub_${version}_linux_$1
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
	printf '%s (%s-1) unstable; urgency=medium\n\n  * See changelog.gz.\n\n -- %s  %s\n' "$1" "$package_version" "$MAINTAINER" "$(date --utc --date "@$SOURCE_DATE_EPOCH" --rfc-email)" |
		gzip --no-name -9 >"$STAGE/usr/share/doc/$1/changelog.Debian.gz"
	cp "$2" "$STAGE/usr/share/doc/$1/copyright"
	gzip --no-name -9 <"$src/deploy/package/codehub.1" >"$STAGE/usr/share/man/man1/codehub.1.gz"
	cp "$work/completion/$1" "$STAGE/usr/share/bash-completion/completions/codehub"
	dated "$STAGE"
}

package() {
	local kind
	for kind in deb rpm; do
		(cd "$src" && "$work/nfpm" package --config "$1" --packager "$kind" --target "$dist/" >"$work/nfpm.log" 2>&1) || {
			cat "$work/nfpm.log" >&2
			die "nfpm failed for $1"
		}
	done
}

client_package() {
	export STAGE=$work/cli/$1 ARCH=$1
	mkdir -p "$STAGE"/usr/{bin,share/doc/codehub-cli,share/man/man1,share/bash-completion/completions}
	cp "$work/stage/codehub-cli_${version}_linux_$1/codehub" "$STAGE/usr/bin/"
	documents codehub-cli "$work/licences/client/copyright"
	package deploy/package/nfpm-cli.yaml
}

# modules PROGRAM OS… prints the name, version and folder of what a program contains.
modules() {
	local program=$1 os
	shift
	printf 'stdlib %s %s\n' "$(go env GOVERSION | sed 's/^go//')" "$(go env GOROOT)"
	for os; do
		(cd "$src" && GOOS=$os go list -tags agent -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' "./cmd/$program")
	done | sort -u
}

# scripts_of_pages prints the same of the scripts in the dashboard's pages, with their licences.
scripts_of_pages() {
	local vendor=$src/internal/web/dashboard/static/vendor name v
	# shellcheck disable=SC2016 # backquotes of Markdown
	sed -n 's/^| `[^|]*` | `\([^`]*\)`[^|]* | \([0-9.]*\) |$/\1 \2/p' "$vendor/README.md" | while read -r name v; do
		echo "npm:$name $v $vendor/LICENSE-$(sed 's/^@\([^/]*\).*/\1/; s/\.org$//' <<<"$name").txt"
	done
}

# licences TARGET collects the licences of the modules on standard input.
licences() {
	local name v source
	mkdir -p "$work/licences/$1"
	{
		printf 'codehub is distributed under the terms of the Apache License 2.0, which are in\n/usr/share/common-licenses/Apache-2.0 and in LICENSE. It contains these modules:\n'
		while read -r name v source; do
			printf '\n\n%s\n%s %s\n\n' "$(printf '=%.0s' {1..72})" "${name#npm:}" "$v"
			find "$source" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort | xargs --no-run-if-empty cat
		done
	} >"$work/licences/$1/copyright"
}

prepare() {
	touch "$src/internal/runtime/agent/program/codehub-agent.gz" # go list wants it
	(cd "$src" && GOBIN=$work GOFLAGS=-trimpath go install "$NFPM")
	(cd "$src/scripts/sbom" && GOFLAGS=-trimpath go build -o "$work/sbom" .)
	mkdir -p "$work/completion" "$work/programs"
	modules codehub-cli linux darwin windows >"$work/client.modules"
	{ modules codehub linux && modules codehub-agent linux && scripts_of_pages; } | sort -u >"$work/server.modules"
	licences client <"$work/client.modules"
	licences server <"$work/server.modules"
}

# completion PROGRAM NAME has a program that runs here print its completion.
completion() { "$1" completion bash >"$work/completion/$2"; }

clients() {
	local system
	for system in linux darwin windows; do
		client $system amd64
		client $system arm64
	done
	completion "$work/stage/codehub-cli_${version}_linux_$(go env GOHOSTARCH)/codehub" codehub-cli
}

servers() {
	server amd64
	server arm64
	completion "$work/stage/codehub_${version}_linux_$(go env GOHOSTARCH)/bin/codehub" codehub
}

# bill writes what the programs contain.
bill() {
	local programs=() file
	for file in "$work"/stage/codehub-cli_*/codehub*; do
		programs+=("codehub-cli=$file")
	done
	for file in "$work"/stage/codehub_*/bin/codehub "$work"/programs/codehub-agent_*; do
		programs+=("codehub=$file")
	done
	sort -u "$work"/*.modules | "$work/sbom" "$version" "$DATE" "$(git rev-parse HEAD)" "${programs[@]}" >"$dist/codehub_$version.spdx.json"
}

# sums adds the images, if release-images.sh has written them for this version, and the chart.
sums() {
	local file
	for file in dist/images.txt dist/codehub-*_"${version}"_linux_*.oci.tar; do
		[ ! -e "$file" ] || cp --reflink=auto "$file" "$dist/"
	done
	scripts/release-chart.sh "$version" "$dist"
	(cd "$dist" && sha256sum -- * >"$work/checksums.txt" && mv "$work/checksums.txt" .)
	rm -rf dist && mv "$dist" dist
}

say() { echo "$about: $*"; }

say tools and licences
prepare
say the client for six systems
clients
say the server for two processors
servers
say packages and the bill of materials
for arch in amd64 arm64; do
	server_package $arch
	client_package $arch
done
bill
sums
say "dist/ has $(find dist -type f | wc -l) files"
