#!/bin/sh
# Runs in the container of build.sh: makes the IDE independent of the image that it runs in.
# Node gets the glibc of this container, by its own path, so that no variable is needed that
# other programs would inherit; scripts get a shell.
set -eu
ide=/opt/codehub-ide
node=$ide/lib/node
glibc=$ide/glibc

# Old names of libraries that are part of libc by now are what ready-made modules
# ask for. The NSS modules are those that /etc/nsswitch.conf may name.
loader=$(patchelf --print-interpreter "$node")
libraries=/lib/$(gcc -print-multiarch)
mkdir "$glibc"
cp -L "$loader" "$glibc/"
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libutil.so.1 libresolv.so.2 \
	libnss_files.so.2 libnss_dns.so.2 libgcc_s.so.1; do
	cp -L "$libraries/$name" "$glibc/"
done
cp -L "/usr$libraries/libstdc++.so.6" "$glibc/"
# RPATH and not RUNPATH: it holds for native modules as well, and before LD_LIBRARY_PATH.
patchelf --set-interpreter "$glibc/${loader##*/}" --force-rpath --set-rpath "$glibc" "$node"

mkdir "$ide/bin"
cp /bin/busybox "$ide/bin/busybox"
ln -s busybox "$ide/bin/sh"
cat >"$ide/bin/code-server" <<END
#!$ide/bin/sh
exec $node $ide/code-server/out/node/entry.js "\$@"
END
chmod 0755 "$ide/bin/code-server"
# Otherwise Node reads /package.json of the image to learn what start is.
echo '{"type": "commonjs"}' >"$ide/package.json"

scripts=$(grep -rIlE --include='*.sh' --include='code-server-oss' '^#! ?(/bin/sh|/usr/bin/env sh)' "$ide/code-server/lib/vscode")
# shellcheck disable=SC2086 # a list of paths
sed -i -E "1s,^#! ?(/bin/sh|/usr/bin/env sh),#!$ide/bin/sh," $scripts

mkdir "$ide/licenses"
for package in libc6 libstdc++6 libgcc-s1 busybox-static; do
	cp -L "/usr/share/doc/$package/copyright" "$ide/licenses/$package"
done

# Every executable is static, or is Node; every module finds its libraries. Two do not,
# and need a display or another libc.
find "$ide" -type f \( -perm /111 -o -name '*.node' -o -name '*.so' \) ! -path "$glibc/*" | while read -r file; do
	[ "$(head -c 4 "$file" | tail -c 3)" = ELF ] || continue
	interpreter=$(patchelf --print-interpreter "$file" 2>/dev/null || true)
	case $interpreter in
	'' | "$glibc"/*) ;;
	*) echo "relocate: $file needs $interpreter" >&2; exit 1 ;;
	esac
	for library in $(patchelf --print-needed "$file" 2>/dev/null || true); do
		[ -e "$glibc/$library" ] || case $file in
		*/microsoft-authentication/*) ;;
		*) echo "relocate: $file needs $library" >&2; exit 1 ;;
		esac
	done
done
