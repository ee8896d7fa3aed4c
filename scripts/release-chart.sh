#!/usr/bin/env bash
# Packs the Helm chart of the last commit into dist/ or another folder, with the release's version
# and the digests of its images, if the folder has them in images.txt (release-images.sh), and adds
# both files to its checksums.txt, if there is one. The same commit makes the same bytes.
#
#	release-chart.sh VERSION [FOLDER]
#
# codehub-chart-VERSION.tgz is what `helm install` and `helm push` take, and
# codehub-chart-VERSION.oci.tar the same as an OCI image layout, for programs that copy images.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh

version=${1#v}
dist=${2:-dist}
# A version of a commit without a release before it is no semantic one.
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+ ]] || version=0.0.0-g$version
epoch=$(git log -1 --format=%ct)
created=$(date --utc --date "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
export TZ=UTC LC_ALL=C
umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# packed NAME… writes these files and folders as a tar, as they are in every build.
packed() {
	tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$epoch" --format=ustar "$@"
}

# images prints the images of the release, if there are any. They are pushed to a registry of the
# user's own, for one or several processors, so that values name none of them by digest.
images() {
	[ ! -e "$dist/images.txt" ] || awk -F '\t' '{ print $1 " linux/" $2 " " $3 }' "$dist/images.txt"
}

# field NAME prints a field of Chart.yaml.
field() { sed -nE "s/^$1: *\"?([^\"]*)\"?$/\1/p" "$work/codehub/Chart.yaml"; }

chart() {
	git archive HEAD:deploy/helm codehub | tar -x -C "$work"
	sed -i -E -e "s/^version: .*/version: $version/" -e "s/^appVersion: .*/appVersion: \"$version\"/" "$work/codehub/Chart.yaml"
	sed -i -E "s#(registry.example.com/codehub/(ide|workspace)):[0-9][0-9.]*#\1:$version#" "$work/codehub/values.yaml"
	images >"$work/images"
	[ ! -s "$work/images" ] || {
		printf 'annotations:\n  codehub/images: |\n'
		sed 's/^/    /' "$work/images"
	} >>"$work/codehub/Chart.yaml"
	packed -C "$work" codehub | gzip --no-name -9 >"$work/chart.tgz"
}

# blob FILE puts a file into the layout and prints its descriptor without the type.
blob() {
	local sum
	sum=$(sha256sum <"$1" | cut -d ' ' -f 1)
	cp "$1" "$work/layout/blobs/sha256/$sum"
	printf '"digest":"sha256:%s","size":%s' "$sum" "$(stat -c %s "$1")"
}

layout() {
	mkdir -p "$work/layout/blobs/sha256"
	local annotations=''
	[ ! -s "$work/images" ] || annotations=$(sed -z 's/\n/\\n/g' "$work/images")
	printf '{"name":"%s","version":"%s","description":"%s","apiVersion":"%s","appVersion":"%s"%s,"kubeVersion":"%s","type":"%s"}' \
		"$(field name)" "$version" "$(field description)" "$(field apiVersion)" "$version" "${annotations:+,\"annotations\":{\"codehub/images\":\"$annotations\"\}}" "$(field kubeVersion)" "$(field type)" >"$work/config"
	printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.cncf.helm.config.v1+json",%s},"layers":[{"mediaType":"application/vnd.cncf.helm.chart.content.v1.tar+gzip",%s}],"annotations":{"org.opencontainers.image.created":"%s","org.opencontainers.image.description":"%s","org.opencontainers.image.title":"%s","org.opencontainers.image.version":"%s"}}' \
		"$(blob "$work/config")" "$(blob "$work/chart.tgz")" "$created" "$(field description)" "$(field name)" "$version" >"$work/manifest"
	printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
		"$(blob "$work/manifest")" "$version" >"$work/layout/index.json"
	printf '{"imageLayoutVersion":"1.0.0"}' >"$work/layout/oci-layout"
	packed -C "$work/layout" blobs index.json oci-layout >"$work/chart.oci.tar"
}

sums() {
	[ -e "$dist/checksums.txt" ] || return 0
	(
		cd "$dist"
		{ grep -v ' codehub-chart-' checksums.txt || true; sha256sum "codehub-chart-$version.oci.tar" "codehub-chart-$version.tgz"; } | sort -k 2 >"$work/checksums.txt"
	)
	install -m 0644 "$work/checksums.txt" "$dist/checksums.txt"
}

chart
layout
mkdir -p "$dist"
install -m 0644 "$work/chart.tgz" "$dist/codehub-chart-$version.tgz"
install -m 0644 "$work/chart.oci.tar" "$dist/codehub-chart-$version.oci.tar"
sums
echo "release: $dist/codehub-chart-$version.tgz and .oci.tar"
