#!/usr/bin/env bash
# Writes the images of a release into dist/ as OCI archives, with their digests in dist/images.txt: the
# server, the IDE and the images of workspaces for amd64 and arm64. It says which of the last two kinds
# it leaves out: those for a processor for which Docker runs no programs, or whose build failed.
# scripts/release.sh then names the images in the programs.
#
#	release-images.sh VERSION
#	release-images.sh defaults VERSION ARCH
#	    prints the variables with which scripts/build.sh makes a server whose default images are
#	    these, by digest. IMAGE_PREFIX says where they are pushed to, as registry.example.com/codehub;
#	    without it, or without an image for that processor, it prints nothing
#
# Each line of dist/images.txt has a name, a processor, the digest and the file, with tabs between.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
source scripts/oci.sh
# shellcheck disable=SC2034 # of messages.sh
about=release

defaults() { # VERSION ARCH
	[ -n "${IMAGE_PREFIX:-}" ] && [ -e dist/images.txt ] || return 0
	local name variable
	for name in ide workspace; do
		variable=RELEASE_${name^^}_IMAGE
		awk -F '\t' -v name=$name -v arch="$2" -v file="codehub-${name}_$1_linux_$2.oci.tar" -v line="$variable=$IMAGE_PREFIX/$name@" \
			'$1 == name && $2 == arch && $4 == file { print line $3 }' dist/images.txt
	done
}

if [ "${1:-}" = defaults ]; then
	defaults "${2#v}" "$3"
	exit
fi
version=${1#v}
[ -z "$(git status --porcelain)" ] || die "there are changes that are not committed, and a release is made from a commit"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH TZ=UTC LC_ALL=C
umask 022
native=$(docker version --format '{{.Server.Arch}}')

mkdir -p dist
work=$(mktemp -d "$PWD/dist/.images.XXXXXX") # on the disk of dist: the layers are large
trap 'rm -rf "$work"' EXIT
oci_layers=$work/layers
src=$work/src
mkdir -p "$oci_layers" "$src"
git archive HEAD | tar -x -C "$src"
rm -f dist/*.oci.tar dist/images.txt

file() { echo "codehub-$1_${version}_linux_$2.oci.tar"; }
listed() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$(cat "$work/digest")" "$(file "$1" "$2")" >>dist/images.txt; }

# of_docker NAME ARCH IMAGE
of_docker() {
	archived_image "dist/$(file "$1" "$2")" "codehub/$1:$version" "$3" >"$work/digest"
}

# runs ARCH succeeds if Docker runs programs for that processor, by itself or with qemu-user.
runs() {
	local image status=0
	[ "$1" != "$native" ] || return 0
	printf 'package main\n\nfunc main() {}\n' >"$work/main.go"
	GOARCH=$1 CGO_ENABLED=0 go build -o "$work/program" "$work/main.go" || die "the program that tries the processor $1 was not built"
	image=$(tar --create --directory="$work" program | docker import -) || die "Docker did not take an image"
	docker run --rm "$image" /program >/dev/null 2>&1 || status=$?
	docker image rm "$image" >/dev/null
	return "$status"
}

# of_builds ARCH writes the images of the IDE and of workspaces.
left_out=()
of_builds() {
	local name image arch=$1 image_arch=''
	[ "$arch" = "$native" ] || image_arch=$arch
	if ! runs "$arch"; then
		left_out+=("the IDE and workspaces for $arch: Docker runs no programs for it, which takes qemu-user-static")
		return
	fi
	while IFS=$'\t' read -r -u 3 name image; do
		if ! IMAGE_ARCH=$image_arch "$src/images/build.sh" show "$name"; then
			[ "$arch" != "$native" ] || exit 1
			left_out+=("$image: its build failed (see above)")
			continue
		fi
		case $name in
		slim) name=workspace-slim ;;
		full) name=workspace ;;
		esac
		timed "dist/$(file "$name" "$arch")" of_docker "$name" "$arch" "$image"
		listed "$name" "$arch"
	done 3< <(IMAGE_ARCH=$image_arch images/build.sh list)
}

# server ARCH
server() {
	local root=$work/rootfs-$1.tar config=$work/config-$1.json dockerfile=$src/images/server/Dockerfile
	(
		cd "$src" && rm -rf bin
		# shellcheck disable=SC2046 # NAME=VALUE, without spaces
		export GOARCH="$1" $(cd "$OLDPWD" && defaults "$version" "$1")
		scripts/build.sh "$version"
	) || return
	"$src/images/server/rootfs.sh" "$src/bin/codehub" "$root" || return
	instruction() { awk -v name="$1" '$1 == name { sub(/^[A-Z]+ /, ""); print }' "$dockerfile"; }
	jq --null-input --compact-output --arg arch "$1" --arg created "$(date --utc --date "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
		--arg diff "sha256:$(sha256sum <"$root" | cut -d' ' -f1)" --arg user "$(instruction USER)" --arg dir "$(instruction WORKDIR)" \
		--argjson entrypoint "$(instruction ENTRYPOINT)" --argjson cmd "$(instruction CMD)" --arg ports "$(instruction EXPOSE)" '
		{created: $created, architecture: $arch, os: "linux", config: {User: $user, WorkingDir: $dir, Entrypoint: $entrypoint, Cmd: $cmd,
			ExposedPorts: ($ports | split(" ") | map({key: (. + "/tcp"), value: {}}) | from_entries)},
			rootfs: {type: "layers", diff_ids: [$diff]}, history: [{created: $created, created_by: "images/server"}]}' >"$config" || return
	archived "dist/$(file server "$1")" "codehub/server:$version" "$config" "$root" >"$work/digest"
}

of_builds amd64
of_builds arm64
for arch in amd64 arm64; do
	timed "dist/$(file server $arch)" server $arch
	listed server $arch
done
[ ${#left_out[@]} = 0 ] || printf "$about: left out %s\n" "${left_out[@]}"
echo "$about: the digests are in dist/images.txt"
