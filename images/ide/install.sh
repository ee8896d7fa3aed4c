#!/bin/sh
# Runs in the container of build.sh: unpacks Node, npm and code-server, and installs what
# code-server needs by its own lock files. `npm install -g` would ignore those and
# compile what nobody uses. Debian's packages and npm's are fetched at the same time.
set -eu
node=/build/node
ide=/opt/codehub-ide
root=$ide/code-server
modules=$root/lib/vscode/node_modules
export DEBIAN_FRONTEND=noninteractive

debian_packages() {
	[ ! -e authorities/all.pem ] || echo 'Acquire::https::CaInfo "/build/authorities/all.pem";' >/etc/apt/apt.conf.d/authorities
	apt-get -q update
	apt-get -q upgrade -y
	apt-get -q install -y --no-install-recommends busybox-static ca-certificates g++ patchelf
}

unpack() { # PACKAGE FOLDER
	mkdir -p "$2"
	tar --extract --gzip --file="packages/$1.tgz" --directory="$2" --strip-components=1 --no-same-owner
}

npm_packages() {
	unpack node "$node" & unpacking=$!
	unpack npm /build/npm
	unpack code-server "$root"
	wait "$unpacking"
	# After Node's own authorities: those of Debian may not be installed yet.
	for file in authorities/*; do
		[ ! -e "$file" ] || { cat "$file" && echo; }
	done >authorities.pem
	export PATH="$node/bin:$PATH" NODE_EXTRA_CA_CERTS=/build/authorities.pem
	export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
	for folder in . lib/vscode lib/vscode/extensions; do
		(cd "$root/$folder" && node /build/npm/bin/npm-cli.js ci --omit=dev --ignore-scripts --legacy-peer-deps --loglevel=error)
	done
	(cd "$root/lib/vscode/extensions" && node ./postinstall.mjs >/dev/null)
}

# compile PACKAGE MODULE [FLAGS] makes a native module from the sources of a package, with
# the settings of its binding.gyp. node-gyp would do it one file after the other, and
# needs Python and make. The modules that other packages bring are ready-made.
compile() {
	cd "$modules/@vscode/$1"
	name=$2
	shift 2
	mkdir -p build/Release
	pids=''
	for file in src/*.cc; do
		g++ -c -std=gnu++20 -fPIC -pthread -O2 -fno-rtti -fno-strict-aliasing -fstack-protector-strong -fno-omit-frame-pointer \
			-DBUILDING_NODE_EXTENSION "-DNODE_GYP_MODULE_NAME=$name" -I"$node/include/node" "$@" \
			-o "/tmp/$name-$(basename "$file").o" "$file" &
		pids="$pids $!"
	done
	for pid in $pids; do wait "$pid"; done
	g++ -shared -pthread -o "build/Release/$name.node" /tmp/"$name"-*.o
	"$node/bin/node" -e 'require(process.argv[1])' "$PWD/build/Release/$name.node"
}

echo "step: install a compiler and the packages of code-server"
debian_packages & debian=$!
npm_packages & npm=$!
wait "$debian"
wait "$npm"

echo "step: compile native modules"
compile spdlog spdlog -DNAPI_CPP_EXCEPTIONS -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS -DFMT_CONSTEVAL= \
	-Inode_modules/node-addon-api -Ideps/spdlog/include & spdlog=$!
compile native-watchdog watchdog -fno-exceptions & watchdog=$!
wait "$spdlog"
wait "$watchdog"

# The links that the package's own postinstall makes.
ln -sf code-linux.sh "$root/lib/vscode/bin/remote-cli/code-server"
ln -sf code-linux.sh "$root/lib/vscode/bin/remote-cli/code" # under its usual name, for terminals of the IDE
ln -sf browser-linux.sh "$root/lib/vscode/bin/helpers/browser.sh"
mkdir "$ide/lib"
cp "$node/bin/node" "$ide/lib/node"
# Where code-server's scripts look for it.
ln -s ../../lib/node "$root/lib/node"
