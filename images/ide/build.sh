#!/usr/bin/env bash
# Builds codehub/ide:latest, the IDE that workspaces of any image get, from Debian and
# npm packages. Skipped when the present image was built from the same inputs, unless
# FORCE=1 (which also fetches Debian's security updates).
#
#	build.sh [IMAGE]
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
source ../debian.sh
image=${1:-codehub/ide:latest}

code_server=4.139.1
# The Korean texts of VS Code: see korean/pack.mjs.
korean_by_key=4.2.1
korean_numbered=25.1.2
inputs=(Dockerfile install.sh prune.sh korean brand.sh settings.json relocate.sh extension start code-server.yaml)

digest=$(digest_files build.sh "${inputs[@]}" -C .. debian.sh)
if [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest"; then
	echo "image: $image is up to date"
	exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -n "$(image_id "$base")" ] || make_base

echo "image: fetching code-server $code_server, Node $node and npm $npm with npm"
context=$work/context
mkdir -p "$context/ca"
cp -R "${inputs[@]}" "$context/"
pack code-server "$code_server" code-server
pack "$node_package" "$node" node
pack npm "$npm" npm
mv "$work"/{code-server,node,npm}.tgz "$context/"
korean() { # PACKAGE VERSION NAME
	(cd "$work" && npm pack --silent "@codingame/monaco-vscode-$1@$2" >/dev/null)
	mv "$work/codingame-monaco-vscode-$1-$2.tgz" "$context/korean-$3.tgz"
}
korean language-pack-ko "$korean_by_key" by-key
korean language-pack-ko "$korean_numbered" numbered
korean api "$korean_numbered" sources
cp /usr/local/share/ca-certificates/*.crt "$context/ca/" 2>/dev/null || touch "$context/ca/none"

build_arguments
arguments+=(--build-arg "NPM_REGISTRY=$(npm config get registry)")
[ "${FORCE:-}" != 1 ] || arguments+=(--no-cache)

echo "image: building $image (two to four minutes the first time)"
build_image "$image" "$digest" "${arguments[@]}" "$context"
# The classic builder keeps the builder stage, 1.9 GB that only a failed build can use.
docker image prune --force --filter label=codehub.stage=builder >/dev/null
