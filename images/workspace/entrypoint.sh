#!/bin/sh
# Starts code-server on the project folder. With HASHED_PASSWORD set, its session
# cookie must equal that value; nobody logs in by a password.
set -eu
path=$PATH
PATH=/usr/sbin:/usr/bin:/sbin:/bin # a program in the home cannot keep the workspace from starting

# A new volume is seeded from the image; one that lost these gets them again.
mkdir -p "$HOME/project"
settings=.local/share/code-server/User/settings.json
if [ ! -e "$HOME/$settings" ]; then
	mkdir -p "$HOME/${settings%/*}"
	cp "/etc/skel/$settings" "$HOME/$settings"
fi

auth=none
if [ -n "${HASHED_PASSWORD:-}" ]; then
	auth=password
fi
cd "$HOME/project"
exec env PATH="$path" /usr/bin/dumb-init -- /usr/lib/code-server/lib/node /usr/local/lib/codehub/launch.js --config /etc/codehub/code-server.yaml --auth "$auth" "$HOME/project"
