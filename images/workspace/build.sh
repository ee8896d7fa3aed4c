#!/usr/bin/env bash
# Builds codehub/workspace:latest and codehub/workspace-slim:latest from Debian
# packages, npm packages and Go's module proxy; an image registry is used for the
# base where there is one, and not needed. Skipped when the present images were
# built from the same inputs, unless FORCE=1 (which also fetches Debian's security
# updates). With SUDO=1 both have sudo.
#
#	build.sh [IMAGE [SLIM]]
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
source ../debian.sh
image=${1:-codehub/workspace:latest}
slim=${2:-codehub/workspace-slim:latest}

go=1.27.4

case ${SUDO:-} in
'' | 0) sudo='' ;;
1) sudo=1 ;;
*) die "SUDO is 1 or 0, and not $SUDO" ;;
esac

digest=$(digest_files Dockerfile build.sh etc -C .. debian.sh)${sudo:+-sudo}
if [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest" && is_current "$slim" "$digest"; then
	echo "image: $image and $slim are up to date"
	exit 0
fi

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

old_base=$(image_id "$base")
if [ "${FORCE:-}" = 1 ] || [ -z "$old_base" ]; then
	make_base
fi

context=$work/context
mkdir "$context"
cp -R Dockerfile etc "$context/"

# make_tools makes tools.tar: Node, npm and Go as the default image has them below
# /usr/local. What npm installs for all projects goes to ~/.local, which is kept.
make_tools() {
	local tools=$work/tools/usr/local module
	mkdir -p "$tools/bin" "$tools/lib/node_modules/npm"
	echo "image: fetching Node $node and npm $npm with npm"
	pack "$node_package" "$node" node
	pack npm "$npm" npm
	tar --extract --gzip --file="$work/node.tgz" --directory="$tools" --strip-components=1 package/bin/node
	tar --extract --gzip --file="$work/npm.tgz" --directory="$tools/lib/node_modules/npm" --strip-components=1
	cp etc/npmrc "$tools/lib/node_modules/npm/npmrc"
	ln -s ../lib/node_modules/npm/bin/npm-cli.js "$tools/bin/npm"
	ln -s ../lib/node_modules/npm/bin/npx-cli.js "$tools/bin/npx"

	echo "image: fetching Go $go with go"
	module=golang.org/toolchain@v0.0.1-go$go.$go_platform
	(cd "$work" && GOFLAGS='' go mod download "$module") || die "Go's module proxy did not give $module (see above)"
	cp -R "$(go env GOMODCACHE)/$module" "$tools/go"
	chmod -R u+w "$tools/go"
	chmod +x "$tools"/go/bin/* # a module's files come without
	find "$tools/go/pkg/tool" -type f -exec chmod +x {} +
	sed -i 's/^GOTOOLCHAIN=.*/GOTOOLCHAIN=local/' "$tools/go/go.env"
	ln -s ../go/bin/go ../go/bin/gofmt "$tools/bin/"

	tar --create --file="$context/tools.tar" --sort=name --mtime=2026-01-01 --owner=0 --group=0 --numeric-owner \
		--mode=a+rX,go-w --directory="$work/tools" usr
	chmod -R u+w "$work/tools"
	rm -r "$work/tools"
}

build_arguments
[ -z "$sudo" ] || arguments+=(--build-arg "SUDO=$sudo")
fresh=()
[ "${FORCE:-}" != 1 ] || fresh+=(--no-cache)

echo "image: building $slim (half a minute)"
build_image "$slim" "$digest" "${arguments[@]}" "${fresh[@]}" --target slim "$context"
make_tools
echo "image: building $image from it (about a minute)"
build_image "$image" "$digest" "${arguments[@]}" --target workspace "$context"
drop_replaced "$base" "$old_base"
