#!/usr/bin/env bash
# Installs and starts what codehub needs and this machine lacks, and says what and
# why. With everything in place it does nothing, within a second.
#
#	setup.sh build|lint      Go
#	setup.sh check           and what the tests use that need no Docker
#	setup.sh run             and Docker, PostgreSQL, and most of what the images are built with
#	setup.sh image           and Docker, and all of what the images are built with
#	setup.sh release         Go, Docker, and what the images are built with and a release is packed with
#	setup.sh test            and what make test uses
#	setup.sh verify          and the Kubernetes of make verify
#	setup.sh bench           and the load of the benchmarks
#	setup.sh packages        and Docker, and what the packages are tested with
#	setup.sh quota           Go, and a virtual machine with the disks of project-quota.sh
set -euo pipefail
cd "$(dirname "$0")"
source messages.sh

go_minimum=1.26

has() { command -v "$1" >/dev/null 2>&1; }

check_go() {
	local version
	has go || die "Go $go_minimum or later is needed to build codehub, and there is no go in PATH: install it from https://go.dev/dl/"
	version=$(go env GOVERSION) || die "go does not run (see above); Go $go_minimum or later is needed"
	if [ "$(printf '%s\n' "$go_minimum" "${version#go}" | sort -V | head -n 1)" != "$go_minimum" ]; then
		die "Go $go_minimum or later is needed, and go is $version: install a newer one from https://go.dev/dl/"
	fi
}

has_postgres() { has postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
has_chromium() { has chromium-headless-shell || has chromium || has chromium-browser || has google-chrome; }
has_cjk_font() { has fc-list && [ -n "$(fc-list ':lang=ko' family)" ]; }
has_faketime() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1' >/dev/null; }
has_c_compiler() { has gcc && [ -e /usr/include/stdlib.h ]; }
knows_npm_registry() { has npm || [ -n "${npm_config_registry:-}" ] || grep -qs '^registry *=' ~/.npmrc; }
has_dockerd() { has dockerd || docker_answers; }

packages=() # to install
reasons=()  # what they are for

# need CHECK PACKAGES WHY adds the packages when the check fails.
need() {
	if ! $1; then
		read -ra names <<<"$2"
		packages+=("${names[@]}")
		reasons+=("$2 ($3)")
	fi
}

need_docker() {
	need has_dockerd docker.io "Docker Engine, which runs the workspaces"
	# Without its parser the engine cannot load its profile where AppArmor is on.
	if [ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ]; then
		need 'has apparmor_parser' apparmor "Docker's profile for containers"
	fi
}

need_image_tools() {
	need 'has mmdebstrap' mmdebstrap "makes the workspace image's base where no image registry answers"
	[ "$EUID" = 0 ] || need 'has newuidmap' uidmap "lets mmdebstrap work without root"
	[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] ||
		need false debian-archive-keyring "the keys that Debian's packages are signed with"
	need 'has curl' curl "fetches code-server for the workspace image"
}

# need_npm is apart, because npm is 335 packages: make run serves before it has them, and the
# build of the images installs them.
need_npm() {
	need knows_npm_registry npm "knows where code-server is fetched from"
}

need_postgres() {
	need has_postgres postgresql "the database; codehub runs one of its own from these programs"
}

# need_check_tools is for the tests that need neither Docker nor Chromium.
need_check_tools() {
	need 'has redis-server' redis-server "the bus between several servers"
	need 'has pgbouncer' pgbouncer "the pooler that stands before a database"
	need 'has nft' nftables "shows the firewall's rules to the tests"
	need 'has docker-registry' docker-registry "an image registry for the tests of image pulls"
	need 'has pgrep' procps "finds a database's processes in the tests"
	need 'has zstd' zstd "reads archives in the tests"
	need 'has ssh' openssh-client "the client of the SSH tests"
	need 'has rsync' rsync "copies files by SSH in the tests"
	need 'has git' git "the tests' way to the repository"
	need 'has mkfs.ext4' e2fsprogs "the disks of the tests' own"
	need 'has mkfs.btrfs' btrfs-progs "the disks of homes with quotas"
	need 'has mkfs.xfs' xfsprogs "disks with XFS"
	need 'has nginx' nginx "checks the reverse proxy's example in docs/"
	need 'has caddy' caddy "checks the other example"
	need 'has haproxy' haproxy "checks the third example"
	need 'has curl' curl "calls the DNS server of the ACME tests"
	need 'has node' nodejs "runs the OpenID provider of the tests"
	need 'has npm' npm "fetches that provider"
	need 'has systemd-analyze' systemd "checks the unit in docs/"
}

need_test_tools() {
	need_check_tools
	need has_c_compiler 'gcc libc6-dev' "Go's race detector"
	need has_chromium chromium-headless-shell "the tests' browser"
	need has_cjk_font 'fontconfig fonts-noto-cjk' "Korean letters in the browser's screenshots"
	need has_faketime libfaketime "moves the clock of a database in the tests"
	need 'has losetup' util-linux "attaches those disks"
	need 'has ip' iproute2 "networks of the tests' own"
}

# need_cluster_tools is for the Kubernetes of the tests (kube.sh).
need_cluster_tools() {
	need 'has /usr/lib/cni/bridge' containernetworking-plugins "networks of the tests' Kubernetes"
	need 'has conntrack' conntrack "connections there"
	need 'has iptables' iptables "services there"
	need 'has openssl' openssl "certificates there"
	need '[ -e /usr/include/seccomp.h ]' libseccomp-dev "its container runtime"
	need 'has pkg-config' pkg-config "building that runtime"
}

need_machine_tools() {
	need 'has qemu-system-x86_64' 'qemu-system-x86 seabios' "the virtual machine"
	need 'has cpio' cpio "packs its first files"
	need 'has xz' xz-utils "unpacks the modules of its kernel"
	need 'has mkfs.xfs' xfsprogs "its disk with XFS"
	need 'has mkfs.ext4' e2fsprogs "its disk with ext4"
}

need_release_tools() {
	need 'has zip' zip "packs the client for Windows"
	need 'has jq' jq "writes the manifests of images"
}

need_package_tools() {
	need 'has lintian' lintian "checks the Debian packages"
	need 'has rpm' rpm "installs the rpm packages in a folder"
	need 'has mmdebstrap' mmdebstrap "makes the machine where the Debian packages are tested"
}

need_load_tools() {
	need 'has wrk' wrk "sends requests to the proxy"
	need 'has h2load' nghttp2-client "opens thousands of connections"
}

install_packages() {
	[ ${#packages[@]} -gt 0 ] || return 0
	local command="apt-get install --no-install-recommends ${packages[*]}" list
	list=$(printf '%s, ' "${reasons[@]}")
	echo "setup: this machine lacks ${list%, }"
	has apt-get || die "this system has no apt-get: install the above with its own package manager (the names are Debian's)"
	can_be_root || die "installing takes root, and there is no sudo: as root, run
  $command"
	as_root true # asks for the password, if there is one
	prepare_packages
	timed "refresh apt's package lists" as_root apt-get -q update || echo "setup: going on with the lists at hand"
	timed "install ${packages[*]}" apt_install "${packages[@]}" ||
		die "apt could not install them (see above); once that is repaired, run
  $command"
	settle_packages
}

apt_install() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600 --no-install-recommends "$@"
}

# prepare_packages keeps the PostgreSQL package from making and starting a database
# of its own, as codehub's is a private one.
prepare_packages() {
	local drop_in=/etc/postgresql-common/createcluster.d/codehub.conf
	if [[ " ${packages[*]} " == *" postgresql "* ]] && [ ! -e "$drop_in" ]; then
		echo "setup: telling the postgresql package to start no database by itself ($drop_in)"
		as_root mkdir -p "${drop_in%/*}"
		echo 'create_main_cluster = false' | as_root tee "$drop_in" >/dev/null
	fi
}

settle_packages() {
	# Debian 13 has Docker's command line in a package of its own.
	if has dockerd && ! has docker; then
		timed "install docker-cli" apt_install docker-cli
	fi
	# The tests start servers of their own; the packages start one for all.
	if [[ " ${packages[*]} " == *" openssh-server "* ]]; then
		echo "setup: stopping the ssh service that the package started"
		if [ -d /run/systemd/system ]; then
			as_root systemctl disable --quiet --now ssh
		else
			as_root service ssh stop >/dev/null 2>&1 || true
		fi
	fi
	local service
	for service in docker-registry redis-server pgbouncer nginx caddy haproxy; do
		[[ " ${packages[*]} " == *" $service "* ]] || continue
		echo "setup: stopping the $service service that the package started"
		if [ -d /run/systemd/system ]; then
			as_root systemctl disable --quiet --now "$service"
		elif has service; then
			as_root service "$service" stop >/dev/null 2>&1 || true
		fi
	done
}

# install_module NAME DIR fetches an npm module of the tests, unless it is there.
install_module() {
	local name=$1 dir=$2
	if [ -e "$dir/node_modules/.package-lock.json" ] && [ ! "$dir/package-lock.json" -nt "$dir/node_modules/.package-lock.json" ]; then
		return
	fi
	timed "fetch $name of the tests with npm" npm ci --prefix "$dir" --ignore-scripts --no-audit --no-fund --loglevel=error ||
		die "npm could not fetch $name of the tests (see above)"
	touch "$dir/node_modules/.package-lock.json"
}

case ${1:-} in
build) ;;
check) need_postgres && need_check_tools ;;
release) need_docker && need_image_tools && need_npm && need_release_tools ;;
packages) need_docker && need_release_tools && need_package_tools ;;
lint) need 'has shellcheck' shellcheck "checks the shell scripts" ;;
image) need_docker && need_image_tools && need_npm ;;
run) need_docker && need_image_tools && need_postgres ;;
test) need_docker && need_image_tools && need_npm && need_postgres && need_test_tools ;;
verify) need_docker && need_image_tools && need_npm && need_postgres && need_test_tools && need_cluster_tools ;;
bench) need_docker && need_image_tools && need_npm && need_postgres && need_test_tools && need_load_tools ;;
quota) need_machine_tools ;;
*) die "usage: setup.sh build|lint|check|image|run|release|packages|test|verify|bench|quota" ;;
esac
check_go
install_packages
case $1 in
check | test | verify | bench) install_module 'the OpenID provider' ../internal/testing/harness/idp/testdata ;;
esac
if [ "$1" = verify ]; then
	install_module 'the devcontainer CLI' ../internal/workspace/devcontainer/testdata
fi
case $1 in
image | run | release | test | verify | bench | packages) ./start-docker.sh ;;
esac
# Otherwise the first test that starts a cluster builds it, within the test's time limit.
if [ "$1" = verify ] && [ "$EUID" = 0 ]; then
	./kube.sh tools >/dev/null
	./kube.sh kubeconform >/dev/null
fi
