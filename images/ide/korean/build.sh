#!/bin/sh
# Runs in the container of build.sh: adds the Korean language pack.
set -eu
for name in by-key numbered sources; do
	mkdir "$name"
	tar --extract --gzip --file="packages/korean-$name.tgz" --directory="$name" --strip-components=1 --no-same-owner
done
/opt/codehub-ide/lib/node korean/pack.mjs by-key numbered sources
