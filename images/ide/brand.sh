#!/bin/sh
# Runs in the builder stage: connects code-server with codehub. Its page loads a script
# that codehub serves, "Sign out" leads to codehub's logout, and the extension shows the
# workspace's status. Each change must find its place, so that a new version of
# code-server cannot lose one unnoticed.
set -eu
vscode=/opt/codehub-ide/code-server/lib/vscode

change() { # FILE OLD NEW
	grep -qF "$2" "$1" || { echo "brand: $1 has no $2" >&2; exit 1; }
	sed -i "s|$2|$3|" "$1"
}
browser=$vscode/out/vs/code/browser/workbench
change "$browser/workbench.html" '<meta charset="utf-8" />' '<meta charset="utf-8" /><script src="{{BASE}}/_codehub/ide.js"></script>'
change "$vscode/out/server-main.js" '"/logout":void 0' '"/_codehub/logout":void 0'
change "$browser/workbench.js" ',null,"code-server")}})}' ',null,"codehub")}})}'
