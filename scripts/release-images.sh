#!/usr/bin/env bash
# Writes the images of a release into dist/ as OCI archives, with their digests in dist/images.txt: the
# images of the IDE and of workspaces for the processor of this machine's Docker, and that of the server
# for all. scripts/release.sh then names them in the programs.
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

# of_docker NAME IMAGE
of_docker() {
	archived_image "dist/$(file "$1" "$native")" "codehub/$1:$version" "$2" >"$work/digest"
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

"$src/images/build.sh" show
while IFS=$'\t' read -r name image; do
	case $name in
	slim) name=workspace-slim ;;
	full) name=workspace ;;
	esac
	timed "dist/$(file "$name" "$native")" of_docker "$name" "$image"
	listed "$name" "$native"
done < <(images/build.sh list)
for arch in amd64 arm64; do
	timed "dist/$(file server $arch)" server $arch
	listed server $arch
done
echo "$about: the digests are in dist/images.txt"
