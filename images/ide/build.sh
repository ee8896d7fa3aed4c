#!/usr/bin/env bash
# Builds codehub/ide:latest, the IDE that workspaces of any image get, from Debian and
# npm packages. Skipped when the present image was built from the same inputs, unless
# FORCE=1 (which also fetches Debian's security updates).
#
#	build.sh [IMAGE]
#	build.sh IMAGE fetch    fetches the npm packages and makes the base, no more
set -euo pipefail
cd "$(dirname "$0")"
source ../../scripts/image.sh
source ../debian.sh
image=${1:-codehub/ide:latest}
task=${2:-build}

code_server=4.139.1
# The Korean texts of VS Code: see korean/pack.mjs.
korean_by_key=4.2.1
korean_numbered=25.1.2
inputs=(Dockerfile install.sh finish.sh prune.sh korean brand.sh settings.json relocate.sh extension start code-server.yaml)

digest=$(digest_files build.sh "${inputs[@]}" -C .. debian.sh)
current() { [ "${FORCE:-}" != 1 ] && is_current "$image" "$digest"; }
if current; then
	exit 0
fi
plan 5
step "fetch code-server $code_server and make the base"
lock ide
if current; then
	exit 0 # made in the meantime
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages="code-server $code_server code-server
$node_package $node node
npm $npm npm
@codingame/monaco-vscode-language-pack-ko $korean_by_key korean-by-key
@codingame/monaco-vscode-language-pack-ko $korean_numbered korean-numbered
@codingame/monaco-vscode-api $korean_numbered korean-sources"
while read -r package version _; do
	fetch "$package" "$version"
done <<<"$packages"
make_base
fetched
[ "$task" = build ] || exit 0

context=$work/context
mkdir -p "$context/ca" "$context/packages"
cp -R "${inputs[@]}" "$context/"
while read -r package version name; do
	cp "$(archive "$package" "$version")" "$context/packages/$name.tgz"
done <<<"$packages"
cp /usr/local/share/ca-certificates/*.crt "$context/ca/" 2>/dev/null || touch "$context/ca/none"

build_arguments
arguments+=(--build-arg "NPM_REGISTRY=$(npm config get registry)")
[ "${FORCE:-}" != 1 ] || arguments+=(--no-cache)
build_image "$image" "$digest" "${arguments[@]}" "$context"
# The classic builder keeps the builder stage, 1.5 GB that only a failed build can use.
docker image prune --force --filter label=codehub.stage=builder >/dev/null
rm -f "$(archive code-server "$code_server")" "$cache"/codingame-*.tgz
