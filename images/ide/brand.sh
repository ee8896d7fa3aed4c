#!/bin/sh
# Runs in the container of build.sh: connects code-server with codehub. Its page loads a script
# that codehub serves, "Sign out" leads to codehub's logout, the extension shows the
# workspace's status, and codehub's settings are the defaults of every home. Each change
# must find its place, so that a new version of code-server cannot lose one unnoticed.
set -eu
ide=/opt/codehub-ide
vscode=$ide/code-server/lib/vscode

change() { # FILE OLD NEW
	grep -qF "$2" "$1" || { echo "brand: $1 has no $2" >&2; exit 1; }
	sed -i "s|$2|$3|" "$1"
}
browser=$vscode/out/vs/code/browser/workbench
change "$browser/workbench.html" '<meta charset="utf-8" />' '<meta charset="utf-8" /><script src="{{BASE}}/_codehub/ide.js"></script>'
change "$vscode/out/server-main.js" '"/logout":void 0' '"/_codehub/logout":void 0'
change "$browser/workbench.js" ',null,"code-server")}})}' ',null,"codehub")}})}'
# The page's settings, because an extension cannot give defaults to all of these, and comes later.
defaults=$("$ide/lib/node" -p 'JSON.stringify(JSON.parse(fs.readFileSync("settings.json")))')
change "$vscode/out/server-main.js" 'enableWorkspaceTrust:!this' "configurationDefaults:$defaults,enableWorkspaceTrust:!this"
# In a home where nobody chose a language in the IDE, the request's decides, not English.
change "$vscode/out/server-main.js" 'console.warn(t),"en"}' 'console.warn(t),void 0}'
