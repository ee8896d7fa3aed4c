#!/bin/sh
# Runs in the container of build.sh: removes what a workspace does not use (AI agents that
# the settings turn off, other platforms' binaries, source maps), more than half, and
# turns telemetry off.
set -eu
ide=/opt/codehub-ide
node=$ide/lib/node
platform=$("$node" -p 'process.platform + "-" + process.arch') # as npm names it: linux-x64

cd "$ide/code-server"
rm -rf lib/vscode/extensions/copilot
find . -type d \( -path '*/node_modules/@github/copilot-sdk-*' -o -path '*/node_modules/@github/copilot-linux*' \
	-o -path '*/node_modules/@microsoft/mxc-sdk/bin' -o -path '*/node_modules/@koromix' \) -prune -exec rm -rf {} +
# prebuilds/{platform}/ (node-pty, argon2, …) and ripgrep's bin/{platform}/
find . -type d \( -path '*/prebuilds/*' -o -path '*/ripgrep-universal/bin/*' \) -prune \
	! -name "$platform" -exec rm -rf {} +
find . -name '*.map' -type f -delete

# The IDE's Node has glibc in every image. What looks at the image to choose a build,
# and finds Alpine, must find the same.
find . -type f -path '*/prebuilds/*' -name '*.musl.node' -delete
find . -type f -path '*/prebuilds/*' -name '*.glibc.node' -exec sh -c 'for f; do mv "$f" "${f%.glibc.node}.node"; done' - {} +
rm -r "lib/vscode/node_modules/@parcel/watcher-$platform-musl"
ln -s "watcher-$platform-glibc" "lib/vscode/node_modules/@parcel/watcher-$platform-musl"

# Otherwise the settings of each user decide.
sed -i 's/"enableTelemetry": true/"enableTelemetry": false/' lib/vscode/product.json
grep -q '"enableTelemetry": false' lib/vscode/product.json
strip --strip-unneeded "$node"
