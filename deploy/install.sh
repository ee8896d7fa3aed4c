#!/bin/sh
# Installs a release of codehub's server on this machine: the deb, the rpm, or the archive where
# neither fits. It is one file, so that it can be fetched and read before it runs.
#
#	install.sh --from URL [--version VERSION] [--client] [--dry-run]
#
# URL is the folder with the files of the release (what make release writes to dist/).
set -eu

from=${CODEHUB_RELEASES:-} version='' asked='' package=codehub dry=''
usage() {
	echo 'usage: install.sh --from URL [--version VERSION] [--client] [--dry-run]' >&2
	exit 2
}
while [ $# -gt 0 ]; do
	case $1 in
	--from | --version) [ $# -gt 1 ] || usage ;;
	esac
	case $1 in
	--from) from=$2 && shift ;;
	--version) version=${2#v} asked=yes && shift ;;
	--client) package=codehub-cli ;;
	--dry-run) dry=yes ;;
	*) usage ;;
	esac
	shift
done
[ -n "$from" ] || usage

die() {
	echo "install: $*" >&2
	exit 1
}

case $(uname -s) in
Linux) ;;
*) die "codehub's server runs on Linux; the client for other systems is on the dashboard of a server (Connect your computer)" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 rpm_arch=x86_64 ;;
aarch64 | arm64) arch=arm64 rpm_arch=aarch64 ;;
*) die "there is no release for the processor $(uname -m)" ;;
esac

# apt would remove the server for its client, and an archive would replace it.
if [ "$package" = codehub-cli ] && codehub serve --help >/dev/null 2>&1; then
	die "codehub's server is installed here, and its program is the client as well"
fi
[ -n "$dry" ] || [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || die "run this as root, since there is no sudo"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if command -v curl >/dev/null; then
	get() { curl --fail --silent --show-error --location --output "$1" "$2"; }
elif command -v wget >/dev/null; then
	get() { wget -q -O "$1" "$2"; } # as BusyBox knows them
else
	die "curl or wget is needed to fetch the release"
fi
fetch() { get "$work/$1" "${from%/}/$1" || die "could not fetch ${from%/}/$1"; }

fetch checksums.txt
there=$(sed -n 's/^.* codehub_\([0-9][^_]*\)_linux_amd64\.tar\.gz$/\1/p' "$work/checksums.txt")
version=${version:-$there}
[ -n "$version" ] || die "${from%/}/checksums.txt names no release: give --version"
# In packages, a commit after a release is later than it, and a candidate earlier.
package_version=$(echo "$version" | sed -E 's/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/; s/-/~/')
if command -v apt-get >/dev/null; then
	kind=deb file=${package}_$package_version-1_$arch.deb
elif command -v dnf >/dev/null || command -v rpm >/dev/null; then
	kind=rpm file=$package-$package_version-1.$rpm_arch.rpm
else
	kind=tar file=${package}_${version}_linux_$arch.tar.gz
fi
want=$(sed -n "s/^\([0-9a-f]\{64\}\)  $file\$/\1/p" "$work/checksums.txt")
[ -n "$want" ] || die "${from%/} has no $file${there:+: the release there is $there}"
fetch "$file"
have=$(sha256sum "$work/$file" | cut -d' ' -f1)
[ "$have" = "$want" ] || die "$file is damaged: its SHA-256 is $have, and checksums.txt says $want"

as_root() {
	if [ -n "$dry" ]; then
		echo "would run: $*"
	elif [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}
chmod 0755 "$work" # apt reads the file as another user
name=${file%.tar.gz}
case $kind in
# A version that was asked for may be an earlier one.
deb)
	# A new machine may not know of any package yet.
	[ "$package" = codehub-cli ] || as_root apt-get --quiet update || :
	as_root apt-get install --yes ${asked:+--allow-downgrades} "$work/$file"
	;;
rpm)
	if command -v dnf >/dev/null; then
		# dnf install would also take an earlier version that was not asked for.
		verb=install
		[ -n "$asked" ] || ! rpm --query --quiet "$package" || verb=upgrade
		as_root dnf $verb --assumeyes "$work/$file"
		[ -n "$dry" ] || rpm --query --quiet "${file%.rpm}" || die "$package was not changed: --version $version also replaces a later version"
	else
		as_root rpm --upgrade --replacepkgs ${asked:+--oldpackage} "$work/$file"
	fi
	;;
tar)
	if [ "$package" = codehub ]; then
		as_root rm -rf /usr/local/share/codehub/clients # of another version
		as_root tar -xzf "$work/$file" -C /usr/local --strip-components=1 "$name/bin" "$name/share"
	else
		as_root tar -xzf "$work/$file" -C /usr/local/bin --strip-components=1 "$name/codehub"
	fi
	;;
esac
[ -z "$dry" ] || exit 0
case $package$kind in
codehubtar) echo "codehub $version is in /usr/local/bin. Its unit for systemd is in /usr/local/share/codehub/package; codehub serve starts it here and now." ;;
codehubdeb | codehubrpm) echo "codehub $version is installed. The address and the setup code: sudo journalctl --unit codehub" ;;
*) echo "The client codehub $version is installed. Next: codehub login https://…" ;;
esac
