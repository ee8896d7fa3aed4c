#!/bin/sh
# Runs in the builder stage: unpacks Node, npm and code-server, and installs what
# code-server needs by its own lock files. `npm install -g` would ignore those and
# compile what nobody uses.
set -eu
node=/opt/node
ide=/opt/codehub-ide
root=$ide/code-server

unpack() {
	mkdir -p "$2"
	tar --extract --gzip --file="$1" --directory="$2" --strip-components=1 --no-same-owner
}
unpack node.tgz "$node"
unpack npm.tgz /opt/npm
unpack code-server.tgz "$root"

export PATH="$node/bin:$PATH"
export npm_config_nodedir="$node" npm_config_cafile=/etc/ssl/certs/ca-certificates.crt
export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
npm() { "$node/bin/node" /opt/npm/bin/npm-cli.js "$@"; }

for folder in . lib/vscode lib/vscode/extensions; do
	echo "install: npm ci in $folder"
	(cd "$root/$folder" && npm ci --omit=dev --ignore-scripts --legacy-peer-deps --loglevel=error)
done
(cd "$root/lib/vscode/extensions" && node ./postinstall.mjs >/dev/null)

echo "install: compiling the native modules that have no ready-made build"
(cd "$root/lib/vscode" && npm rebuild @vscode/spdlog @vscode/native-watchdog --loglevel=error)

# The links that the package's own postinstall makes.
ln -sf code-linux.sh "$root/lib/vscode/bin/remote-cli/code-server"
ln -sf browser-linux.sh "$root/lib/vscode/bin/helpers/browser.sh"
mkdir "$ide/lib"
cp "$node/bin/node" "$ide/lib/node"
# Where code-server's scripts look for it.
ln -s ../../lib/node "$root/lib/node"
