#!/usr/bin/env bash
# Builds codehub/workspace-slim:latest or codehub/workspace:latest from Debian
# packages, npm packages and Go's module proxy; an image registry is used for the
# base where there is one, and not needed. Skipped when the present image was
# built from the same inputs, unless FORCE=1 (which also fetches Debian's security
# updates). With SUDO=1 they have sudo.
#
#	build.sh slim|full [IMAGE]
#
# The full image begins with the layers of the slim one, which is built first.
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
source ../debian.sh

go=1.27.4
# Later versions have a program for each platform.
pnpm=10.34.9

case ${SUDO:-} in
'' | 0) sudo='' ;;
1) sudo=1 ;;
*) die "SUDO is 1 or 0, and not $SUDO" ;;
esac
case ${1:-} in
slim) image=${2:-codehub/workspace-slim:${IMAGE_ARCH:-latest}} ;;
full) image=${2:-codehub/workspace:${IMAGE_ARCH:-latest}} ;;
*) die "usage: build.sh slim|full [IMAGE]" ;;
esac

digest=$(digest_files Dockerfile build.sh etc -C .. debian.sh)$foreign${sudo:+-sudo}
current() { [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest"; }
if current; then
	exit 0
fi

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
context=$work/context
mkdir "$context"
trust_company
cp -R Dockerfile etc "$context/"
build_arguments
[ -z "$sudo" ] || arguments+=(--build-arg "SUDO=$sudo")

build_slim() {
	local old_base
	plan 2
	step "make the base"
	lock slim
	! current || exit 0 # made in the meantime
	old_base=$(image_id "$base")
	if [ "${FORCE:-}" = 1 ]; then
		make_base renew
		arguments+=(--no-cache)
	else
		make_base missing
	fi
	build_image "$image" "$digest" "${arguments[@]}" --target slim "$context"
	drop_replaced "$base" "$old_base"
}

build_full() {
	local tools
	plan 4
	lock full
	! current || exit 0
	make_base missing
	make_tools >"$work/tools.log" 2>&1 &
	tools=$!
	build "${arguments[@]}" --target toolchains "$context"
	step "fetch Go $go, Node $node, npm $npm and pnpm $pnpm"
	wait "$tools" || {
		cat "$work/tools.log"
		exit 1
	}
	mv "$work/tools.tar" "$context/"
	step "store the image"
	build_image "$image" "$digest" "${arguments[@]}" --target workspace "$context"
}

# make_tools makes tools.tar: Node, npm, pnpm and Go as the default image has them below
# /usr/local. What npm installs for all projects goes to ~/.local, which is kept.
make_tools() {
	local tools=$work/tools/usr/local module
	mkdir -p "$tools/bin" "$tools/lib/node_modules/npm" "$tools/lib/node_modules/pnpm"
	fetch "$node_package" "$node"
	fetch npm "$npm"
	fetch pnpm "$pnpm"
	module=golang.org/toolchain@v0.0.1-go$go.$go_platform
	(cd "$work" && GOFLAGS='' go mod download "$module") || die "Go's module proxy did not give $module (see above)"
	cp -R "$(go env GOMODCACHE)/$module" "$tools/go"
	chmod -R u+w "$tools/go"
	chmod +x "$tools"/go/bin/* # a module's files come without
	find "$tools/go/pkg/tool" -type f -exec chmod +x {} +
	sed -i 's/^GOTOOLCHAIN=.*/GOTOOLCHAIN=local/' "$tools/go/go.env"
	ln -s ../go/bin/go ../go/bin/gofmt "$tools/bin/"

	fetched
	tar --extract --gzip --file="$(archive "$node_package" "$node")" --directory="$tools" --strip-components=1 package/bin/node
	tar --extract --gzip --file="$(archive npm "$npm")" --directory="$tools/lib/node_modules/npm" --strip-components=1
	cp etc/npmrc "$tools/lib/node_modules/npm/npmrc"
	ln -s ../lib/node_modules/npm/bin/npm-cli.js "$tools/bin/npm"
	ln -s ../lib/node_modules/npm/bin/npx-cli.js "$tools/bin/npx"
	tar --extract --gzip --file="$(archive pnpm "$pnpm")" --directory="$tools/lib/node_modules/pnpm" --strip-components=1
	chmod +x "$tools"/lib/node_modules/pnpm/bin/*.cjs
	ln -s ../lib/node_modules/pnpm/bin/pnpm.cjs "$tools/bin/pnpm"
	ln -s ../lib/node_modules/pnpm/bin/pnpx.cjs "$tools/bin/pnpx"

	tar --create --file="$work/tools.tar" --sort=name --mtime=2026-01-01 --owner=0 --group=0 --numeric-owner \
		--mode=a+rX,go-w --directory="$work/tools" usr
	chmod -R u+w "$work/tools"
	rm -r "$work/tools"
	rm -f "$(archive pnpm "$pnpm")"
	(
		! flock --nonblock 7 || rm -f "$(archive "$node_package" "$node")" "$(archive npm "$npm")"
	) 7>"$cache/ide.lock" # a build of the IDE needs them as well
}

"build_$1"
