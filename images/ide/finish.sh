#!/bin/sh
# Runs in the container of build.sh: makes the IDE of codehub from code-server.
set -eu
ide=/opt/codehub-ide
echo "step: connect it with codehub, and add Korean"
./prune.sh
./korean/build.sh & korean=$!
./brand.sh
wait "$korean"
./relocate.sh
cp -R extension "$ide/code-server/lib/vscode/extensions/codehub"
cp korean/LICENSE "$ide/licenses/language-pack-ko"
cp start code-server.yaml "$ide/"
cp code "$ide/bin/"
