#!/usr/bin/env bash
# Tests the packages of two releases as an administrator uses them, and prints a figure for each
# step: the deb in a bare Debian 12 with systemd and Docker of its own, in a container; the rpm in a
# folder; install.sh from a server on this machine. It takes root, the registry of Debian, and the
# images of the IDE and of workspaces (images/build.sh).
#
#	package-test.sh [OLD NEW]
#
# OLD and NEW are folders that release.sh has written. Without them both are made here, as 0.1.0
# and 0.1.1 of the last commit. A third, 99.0.0, is the server of the last commit with one more
# migration, in the package of NEW.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/messages.sh
source scripts/oci.sh
about=packages

arch=$(dpkg --print-architecture)
work=$(mktemp -d)
machine=codehub-package-test-$$
newest=$work/newest
server=
finish() {
	local status=$?
	if [ "$status" != 0 ] && docker inspect "$machine" >/dev/null 2>&1; then
		docker exec "$machine" journalctl --unit codehub --no-pager --lines 40 >&2 || :
	fi
	[ -z "$server" ] || kill "$server"
	docker rm --force --volumes "$machine" >/dev/null 2>&1 || :
	docker image rm "$machine" >/dev/null 2>&1 || :
	rm -rf "$work"
}
trap finish EXIT

say() { echo "$about: $*"; }
now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f s", b - a }'; }
# expect TEXT COMMAND… fails with the text unless the command succeeds.
expect() {
	local text=$1
	shift
	"$@" || die "not so: $text"
}
# equal TEXT GOT WANT
equal() { [ "$2" = "$3" ] || die "$1: $2 instead of $3"; }
# await SECONDS TEXT COMMAND… waits until the command succeeds.
await() {
	local seconds=$1 text=$2 end
	end=$((SECONDS + $1))
	shift 2
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt "$end" ] || die "not within $seconds s: $text"
		sleep 0.1
	done
}

inside() { docker exec --env DEBIAN_FRONTEND=noninteractive --env LC_ALL=C.UTF-8 "$machine" "$@"; }
apt() {
	inside apt-get --quiet --quiet --option Dpkg::Use-Pty=0 --yes "$@" >"$work/apt.log" 2>&1 || {
		tail -n 40 "$work/apt.log" >&2
		die "apt-get $* failed"
	}
}
property() { inside systemctl show codehub --property "$1" --value; }
client() { inside codehub "$@"; }
starts() { inside journalctl --unit codehub --output cat --no-pager | grep -c 'codehub serves'; }
version_served() { inside curl --silent --fail http://localhost:8080/healthz; }
container_started() { inside docker inspect --format '{{.State.StartedAt}} {{.State.Pid}}' "$(inside docker ps --quiet --filter name=^codehub-ws-)"; }
# accounts prints the users with their ids, and the user's API tokens.
accounts() { { client users list | awk '{ print $1, $NF }'; client tokens list | awk '{ print $1 }'; } | sort; }
state_of_demo() { client show demo --output json | sed -n 's/.*"state": *"\([a-z_]*\)".*/\1/p' | head -n 1; }

releases() {
	local v
	if [ $# = 2 ]; then
		old=$(realpath "$1") new=$(realpath "$2")
		return
	fi
	for v in 0.1.0 0.1.1; do
		scripts/release.sh "v$v"
		mv dist "$work/$v"
	done
	old=$work/0.1.0 new=$work/0.1.1
}

# image_files writes the images of the IDE and of workspaces as a release has them, unless OLD has
# them. The slim image, which takes less time, is the default one here.
image_files() {
	local name made file
	mkdir "$work/images"
	oci_layers=$(mktemp -d "$work/layers.XXXXXX")
	for name in ide workspace; do
		file=codehub-${name}_$(served "$old")_linux_$arch.oci.tar made=codehub/$name:latest
		[ $name = ide ] || made=codehub/workspace-slim:latest
		if [ -e "$old/$file" ]; then
			cp --reflink=auto "$old/$file" "$work/images/" || return
		else
			docker image inspect "$made" >/dev/null || die "make image makes it"
			archived_image "$work/images/$file" "codehub/$name:$(served "$old")" "$made" >/dev/null || return
		fi
	done
	rm -r "$oci_layers"
}

# migrating_package makes a package whose server has one more migration, with which the servers of OLD
# and NEW do not work.
migrating_package() {
	local src=$work/src root=$work/deb number
	mkdir "$src" "$newest"
	git archive HEAD | tar -x -C "$src" || return
	number=$(find "$src/internal/postgres/migrations" -name '*.sql' -printf '%f\n' | sort | tail -n 1 | cut -d_ -f1)
	number=$((10#$number + 1))
	printf -- '-- +goose Up\nCREATE TABLE package_test (id bigint PRIMARY KEY);\nUPDATE compatibility SET works_since = %d;\n' $number \
		>"$src/internal/postgres/migrations/$(printf %05d $number)_package_test.sql"
	(cd "$src" && scripts/build.sh 99.0.0 >"$work/build.log" 2>&1) || {
		cat "$work/build.log" >&2
		return 1
	}
	dpkg-deb --raw-extract "$new/$(deb "$new" codehub)" "$root" || return
	cp "$src/bin/codehub" "$root/usr/bin/codehub"
	sed -i 's/^Version: .*/Version: 99.0.0-1/' "$root/DEBIAN/control"
	rm "$root/DEBIAN/md5sums"
	dpkg-deb -Zgzip -z1 --build "$root" "$newest" >/dev/null || return
	touch "$newest/codehub_99.0.0_linux_amd64.tar.gz" # names the version
	rm -r "$src" "$root"
}

# deb FOLDER NAME prints the package of a release.
deb() { basename "$1/$2"_*_"$arch".deb; }
# served FOLDER prints the version of a release.
served() { basename "$1"/codehub_*_linux_amd64.tar.gz | cut -d_ -f2; }

check_lintian() {
	local begin
	begin=$(now)
	lintian --fail-on error --display-level '>=warning' "$new"/*_"$arch".deb >"$work/lintian.log" 2>&1 || {
		cat "$work/lintian.log" >&2
		die "lintian has errors"
	}
	say "lintian: no errors, $(grep -c '^W:' "$work/lintian.log" || :) warnings ($(since "$begin"))"
}

boot() {
	local begin job jobs=()
	# While Debian is unpacked.
	image_files & jobs+=($!)
	migrating_package & jobs+=($!)
	go build -o "$work/idesession" ./scripts/idesession & jobs+=($!)
	begin=$(now)
	mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,curl bookworm "$work/root.tar"
	for job in "${jobs[@]}"; do
		wait "$job" || die "the files for the test were not made"
	done
	docker import "$work/root.tar" "$machine" >/dev/null
	# A container like this runs systemd and Docker also where the machine's own Docker does not have
	# all capabilities, so that --privileged fails. Docker's data is on a volume, since an overlay
	# does not lie on an overlay. systemd hands credentials to a service on a mount of its own, which
	# the service sees if the root is a shared mount.
	docker run --detach --name "$machine" --cap-add ALL --cap-drop SYS_RESOURCE --security-opt seccomp=unconfined \
		--security-opt apparmor=unconfined --security-opt systempaths=unconfined --device-cgroup-rule 'a *:* rwm' --cgroupns private \
		--tmpfs /run --tmpfs /run/lock --tmpfs /tmp --volume /var/lib/docker --env container=docker \
		--volume "$old:/packages/old:ro" --volume "$new:/packages/new:ro" --volume "$newest:/packages/newest:ro" \
		--volume "$work/images:/packages/images:ro" --volume "$work/idesession:/packages/idesession:ro" --volume "$PWD/deploy/install.sh:/packages/install.sh:ro" \
		"$machine" sh -c 'mount --make-rshared /; for f in /sys /sys/fs/cgroup /sys/fs/cgroup/*/; do mount -o remount,bind,rw "$f" 2>/dev/null; done; exec /sbin/init' >/dev/null
	await 60 "systemd runs" inside test -d /run/systemd/system
	await 60 "systemd has started" sh -c "docker exec $machine systemctl is-system-running | grep -E 'running|degraded'"
	say "a bare Debian $(inside cat /etc/debian_version) with systemd $(inside systemctl --version | sed -n 's/^systemd \([0-9]*\).*/\1/p'): $(since "$begin")"
}

check_install() {
	local begin
	begin=$(now)
	apt update
	apt install --download-only "/packages/old/$(deb "$old" codehub)"
	say "apt downloads what codehub needs: $(since "$begin")"
	installed=$(now)
	apt install "/packages/old/$(deb "$old" codehub)"
	say "apt install: $(since "$installed")"
	await 60 "setup code in the journal" sh -c "docker exec $machine journalctl --unit codehub --output cat --no-pager | grep -q 'setup?code='"
	say "from apt install to the setup code in the journal: $(since "$installed")"
	equal "starts" "$(starts)" 1
	equal "the version served" "$(version_served | grep -o "\"version\":\"$(served "$old")\"")" "\"version\":\"$(served "$old")\""
	equal "mode of codehub.env" "$(inside stat --format '%a %U:%G' /etc/codehub/codehub.env)" "640 root:codehub"
	equal "mode of secrets" "$(inside stat --format '%a %U' /etc/codehub/secrets)" "700 root"
	equal "mode of the data" "$(inside stat --format '%a %U' /var/lib/codehub)" "711 codehub"
	equal "databases besides codehub's" "$(inside sh -c 'pg_lsclusters --no-header | wc -l')" 0
	expect "codehub may use Docker" sh -c "docker exec $machine id -nG codehub | grep -qw docker"
	expect "there is a completion" inside bash -c 'source /usr/share/bash-completion/completions/codehub && complete -p codehub >/dev/null'
	equal "clients that it offers" "$(inside curl --silent --fail http://localhost:8080/bin/checksums.txt | sort)" \
		"$(grep -E ' codehub-cli_.*\.(tar\.gz|zip)$' "$old/checksums.txt" | sort)"
	equal "starts with the machine" "$(inside systemctl is-enabled codehub)" enabled
}

check_unit() {
	local level before
	equal "type of the unit" "$(property Type)" notify
	level=$(inside systemd-analyze security --no-pager codehub.service | sed -n 's/.*Overall exposure level for codehub.service: \([0-9.]*\).*/\1/p')
	expect "systemd-analyze security is below 4 and not $level" awk -v l="$level" 'BEGIN { exit !(l != "" && l < 4) }'
	say "systemd-analyze security: $level"
	before=$(property WatchdogTimestampMonotonic)
	await 45 "the server reports to the watchdog" sh -c "[ \"\$(docker exec $machine systemctl show codehub --property WatchdogTimestampMonotonic --value)\" != $before ]"
	say "watchdog: $(property WatchdogUSec), and the server reports to it"
}

# check_watchdog has the server hang.
check_watchdog() {
	local begin
	inside sh -c 'mkdir -p /run/systemd/system/codehub.service.d && printf "[Service]\nWatchdogSec=6\n" >/run/systemd/system/codehub.service.d/test.conf && systemctl daemon-reload && systemctl restart codehub'
	begin=$(now)
	# shellcheck disable=SC2016 # for the shell in the container
	inside sh -c 'kill -STOP "$(systemctl show codehub --property MainPID --value)"'
	await 120 "systemd restarts a server that hangs" sh -c "[ \"\$(docker exec $machine systemctl show codehub --property NRestarts --value)\" = 1 ]"
	await 60 "it serves again" version_served
	say "a server that hangs, with a watchdog of 6 s, serves again after $(since "$begin")"
	inside sh -c 'rm -r /run/systemd/system/codehub.service.d && systemctl daemon-reload && systemctl reset-failed codehub && systemctl restart codehub'
}

# check_ide goes on to the IDE in a browser: the images from files, the first user, a workspace.
check_ide() {
	local begin code page=(curl --silent --location --cookie /tmp/jar --cookie-jar /tmp/jar --header 'Sec-Fetch-Mode: navigate' --header 'Sec-Fetch-Dest: document')
	code=$(inside journalctl --unit codehub --output cat --no-pager | sed -n 's/.*setup?code=\([A-Z0-9-]*\).*/\1/p' | tail -n 1)
	equal "status of the setup page's form" "$(inside curl --silent --output /dev/null --write-out '%{http_code}' --cookie-jar /tmp/jar --header 'Origin: http://codehub.localhost:8080' \
		--data "code=$code&username=admin&password=package-test-pw&password2=package-test-pw" http://codehub.localhost:8080/setup)" 303
	inside "${page[@]}" http://codehub.localhost:8080/ >"$work/page"
	expect "the page says how to load the images" grep -q 'codehub images load FILE' "$work/page"
	begin=$(now)
	inside sh -c 'codehub-admin images load /packages/images/codehub-*.oci.tar && codehub-admin images list' >"$work/images.list"
	expect "no image is missing" sh -c "! grep -q Missing $work/images.list"
	say "images of the IDE and of workspaces loaded from files: $(since "$begin")"
	docker exec --interactive "$machine" codehub login --username admin http://localhost:8080 <<<package-test-pw >/dev/null 2>&1
	begin=$(now)
	client create demo --wait >/dev/null
	say "a workspace runs: $(since "$begin")"
	ide=$(client open --print demo)
	await 60 "the IDE responds" sh -c "docker exec $machine ${page[*]@Q} $ide | grep -q vscode-workbench-web-configuration"
	ide=$(inside "${page[@]}" --output /dev/null --write-out '%{url_effective}' "$ide")
	say "from apt install to the page of the IDE: $(since "$installed")"
	expect "the IDE within 180 s" awk -v s="$(since "$installed")" 'BEGIN { exit !(s + 0 <= 180) }'
	inside sh -c 'echo "# by the administrator" >>/etc/codehub/codehub.env'
}

# check_secret hands a secret to the server and to codehub-admin by a credential.
check_secret() {
	inside sh -c 'umask 077; echo hidden-secret >/etc/codehub/secrets/admin; echo CODEHUB_ADMIN_PASSWORD_FILE=secrets_admin >>/etc/codehub/codehub.env; systemctl restart codehub'
	await 60 "it serves with a secret in a file" version_served
	inside codehub-admin config check >"$work/config"
	expect "the secret comes from the file" grep -qE 'CODEHUB_ADMIN_PASSWORD .*file' "$work/config"
	expect "the secret is not shown" sh -c "! grep -q hidden-secret $work/config && ! docker exec $machine journalctl --no-pager | grep -q hidden-secret"
}

# open_session opens a session of the IDE, as a tab does, and starts a process in the workspace.
open_session() {
	local token
	token=$(client tokens create package-test)
	docker exec --detach --env CODEHUB_TOKEN="$token" "$machine" sh -c "exec /packages/idesession '$ide' >/tmp/session 2>&1"
	await 30 "the session of the IDE" inside grep -q '^connected' /tmp/session
	# shellcheck disable=SC2016 # for the shell in the workspace
	process=$(client exec demo -- sh -c 'nohup sleep infinity >/dev/null 2>&1 & echo $!')
}
# process_started prints when the process has started.
process_started() { client exec demo -- cut -d ' ' -f 22 "/proc/$process/stat"; }
# session WORD counts the lines of the session that begin with it.
session() { inside sh -c "grep -c '^$1' /tmp/session || :"; }

# change TEXT FOLDER OPTIONS… installs another version while the workspace runs.
change() {
	local text=$1 to=$2 before_starts before_container before_process reconnected begin down
	shift 2
	before_starts=$(starts)
	before_container=$(container_started)
	before_process=$(process_started)
	reconnected=$(session reconnected)
	# How long nothing responds, as a client sees it.
	docker exec --detach "$machine" bash -c 'rm -f /tmp/outage /tmp/end; last=$(date +%s%N); longest=0
		until [ -e /tmp/end ]; do
			if curl --silent --fail --max-time 1 --output /dev/null http://localhost:8080/healthz; then
				t=$(date +%s%N); d=$(((t - last) / 1000000)); last=$t; [ $d -le $longest ] || longest=$d
			fi
			sleep 0.05
		done; echo $longest >/tmp/outage'
	begin=$(now)
	apt install "$@" "/packages/$to/$(deb "${!to}" codehub)"
	await 60 "$(served "${!to}") serves" sh -c "docker exec $machine curl --silent http://localhost:8080/healthz | grep -q '\"$(served "${!to}")\"'"
	begin=$(since "$begin")
	sleep 1
	inside touch /tmp/end
	await 10 "the outage is known" inside test -s /tmp/outage
	down=$(inside cat /tmp/outage)
	equal "starts by the $text" $(($(starts) - before_starts)) 1
	equal "the workspace's container and process" "$(container_started)" "$before_container"
	equal "the process of the user" "$(process_started)" "$before_process"
	await 30 "the IDE's session reconnects" sh -c "[ \"\$(docker exec $machine grep -c ^reconnected /tmp/session)\" -gt $reconnected ]"
	equal "breaks of the IDE's session" "$(session broken)" $((reconnected + 1))
	expect "the administrator's settings are kept" inside grep -q 'by the administrator' /etc/codehub/codehub.env
	equal "state of the workspace" "$(state_of_demo)" running
	say "$text to $(served "${!to}"): $begin, one restart, nothing served for $down ms, the workspace runs on, the IDE's session $(inside tail -n 1 /tmp/session)"
}

# check_back goes back from a version that has migrated the database, with the dump from before, as
# docs/upgrade.md says.
check_back() {
	local begin dump accounts container process_before reconnected
	accounts=$(accounts)
	container=$(container_started)
	process_before=$(process_started)
	change upgrade newest
	dump=$(inside sh -c 'ls /var/lib/codehub/backups/*-before-99.0.0.dump')
	equal "mode of the dump" "$(inside stat --format '%a %U' "$dump")" "600 codehub"
	client tokens create later >/dev/null
	expect "there is one more token" [ "$(accounts)" != "$accounts" ]
	reconnected=$(session reconnected)
	begin=$(now)
	apt install --allow-downgrades "/packages/old/$(deb "$old" codehub)"
	expect "the package says that the server did not start" grep -q 'codehub did not start' "$work/apt.log"
	inside systemctl stop codehub
	expect "the journal says why" sh -c "docker exec $machine journalctl --unit codehub --output cat --no-pager | grep -q 'a newer codehub has migrated the database'"
	inside codehub-admin database restore "$dump" >"$work/restore.log" 2>&1 || {
		cat "$work/restore.log" >&2
		die "the dump was not restored"
	}
	inside systemctl start codehub
	# Once the server has found that the database is an earlier one, it is on hold.
	await 60 "codehub takes over with the restored database" client reconcile-restore --apply
	equal "the version served" "$(version_served | grep -o "\"version\":\"$(served "$old")\"")" "\"version\":\"$(served "$old")\""
	equal "accounts after the restore" "$(accounts)" "$accounts"
	equal "state of the workspace" "$(state_of_demo)" running
	equal "the workspace's container and process" "$(container_started)" "$container"
	equal "the process of the user" "$(process_started)" "$process_before"
	await 30 "the IDE's session reconnects" sh -c "[ \"\$(docker exec $machine grep -c ^reconnected /tmp/session)\" -gt $reconnected ]"
	say "back from 99.0.0 to $(served "$old") with the dump: $(since "$begin"), the accounts and workspaces of the dump, the workspace and the IDE's session run on"
}

check_remove() {
	local volumes
	volumes=$(inside docker volume ls --quiet --filter label=codehub.role=home | wc -l)
	expect "there are homes" [ "$volumes" -gt 0 ]
	apt remove codehub
	grep -A 1 '^Workspaces, homes' "$work/apt.log" | sed "s/^/$about: remove says: /"
	expect "the server has stopped" sh -c "! docker exec $machine curl --silent --output /dev/null http://localhost:8080/healthz"
	expect "the workspace runs on" container_started >/dev/null
	expect "the settings are kept" inside test -e /etc/codehub/codehub.env
	apt install "/packages/old/$(deb "$old" codehub)"
	await 60 "it serves again after it was removed and installed" version_served
	equal "state of the workspace" "$(state_of_demo)" running
	say "removed and installed again: the same users and workspaces"
	apt purge codehub
	grep -E '^(/var/lib/codehub|Homes in)' "$work/apt.log" | sed "s/^/$about: purge says: /"
	equal "homes after purge" "$(inside docker volume ls --quiet --filter label=codehub.role=home | wc -l)" "$volumes"
	expect "the database is kept" inside test -d /var/lib/codehub
	expect "the settings are gone" inside test ! -e /etc/codehub
	expect "nothing of the package is left" sh -c "[ -z \"\$(docker exec $machine find /etc /usr -name '*codehub*' -print)\" ]"
	say "purged: the database and the homes ($volumes) are kept"
}

check_client() {
	apt install "/packages/new/$(deb "$new" codehub-cli)"
	expect "the client's version" sh -c "docker exec $machine codehub version | grep -q '$(served "$new")'"
	apt purge codehub-cli
	say "codehub-cli installed and purged"
}

check_rpm() {
	local root=$work/rpm name
	mkdir "$root"
	tar -x -f "$work/root.tar" -C "$root" --exclude './dev/*'
	rpm --root "$root" --initdb
	name=$(cd "$old" && ls codehub-[0-9]*."$(uname -m)".rpm)
	# Debian's packages are not in rpm's database.
	rpm --root "$root" --install --nodeps "$old/$name"
	rpm --root "$root" --query --list --verbose codehub >"$work/rpm.list"
	equal "mode of codehub.env" "$(awk '$NF == "/etc/codehub/codehub.env" { print $1 }' "$work/rpm.list")" -rw-r-----
	equal "mode of secrets" "$(awk '$NF == "/etc/codehub/secrets" { print $1 }' "$work/rpm.list")" drwx------
	equal "mode of the program" "$(awk '$NF == "/usr/bin/codehub" { print $1 }' "$work/rpm.list")" -rwxr-xr-x
	expect "the scriptlet has made the user" grep -q '^codehub:' "$root/etc/passwd"
	expect "the unit starts with the machine" test -L "$root/etc/systemd/system/multi-user.target.wants/codehub.service"
	equal "its version" "$(chroot "$root" codehub --version)" "codehub $(served "$old")"
	echo '# by the administrator' >>"$root/etc/codehub/codehub.env"
	rpm --root "$root" --upgrade --nodeps "$new"/codehub-[0-9]*."$(uname -m)".rpm
	equal "version after the upgrade" "$(chroot "$root" codehub --version)" "codehub $(served "$new")"
	expect "the administrator's settings are kept" grep -q 'by the administrator' "$root/etc/codehub/codehub.env"
	# The scriptlet gives these to the group codehub.
	equal "files that differ from the package" "$(rpm --root "$root" --verify --nodeps codehub | grep -vE ' /etc/codehub(/codehub.env)?$')" ""
	rpm --root "$root" --erase --nodeps codehub
	expect "the unit is gone" test ! -e "$root/etc/systemd/system/multi-user.target.wants/codehub.service"
	rpm --root "$root" --install --nodeps "$new"/codehub-cli-*."$(uname -m)".rpm
	equal "version of the client" "$(chroot "$root" codehub --version)" "codehub $(served "$new")"
	say "rpm: $(grep -c '^-' "$work/rpm.list") files; installed, upgraded, verified and erased; the settings kept"
}

# check_script runs install.sh against a server of this machine.
check_script() {
	local address tool kind
	address=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.Gateway}}{{end}}' "$machine")
	python3 -u -m http.server --bind "$address" --directory "$new" 0 >"$work/http.log" 2>&1 &
	server=$!
	await 10 "the file server listens" grep -q 'port' "$work/http.log"
	address=http://$address:$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/http.log")
	# shellcheck disable=SC2016 # for the shell in the container
	# Folders of commands as on systems with rpm, and with neither.
	inside bash -c 'for kind in rpm tar; do mkdir -p /opt/$kind
		for tool in sh curl sed sha256sum cut mktemp uname chmod rm tar id gzip; do ln -sf "$(command -v $tool)" /opt/$kind/; done; done
		printf "#!/bin/sh\nexit 1\n" >/opt/rpm/rpm; chmod +x /opt/rpm/rpm'
	for kind in deb rpm tar; do
		tool=/usr/sbin:/usr/bin:/sbin:/bin
		[ $kind = deb ] || tool=/opt/$kind
		expect "install.sh installs a $kind" sh -c "docker exec --env PATH=$tool $machine /bin/sh /packages/install.sh --from $address --dry-run | tee $work/dry | grep -q 'would run: .*codehub.*$(served "$new")'"
		say "install.sh --dry-run: $(sed 's/.*would run: //' "$work/dry")"
	done
	inside sh /packages/install.sh --from "$address" --version "$(served "$new")" >"$work/apt.log" 2>&1 || {
		cat "$work/apt.log" >&2
		die "install.sh failed"
	}
	await 60 "the server of install.sh serves" version_served
	apt purge codehub
	inside env PATH=/opt/tar /bin/sh /packages/install.sh --from "$address" --client >/dev/null
	expect "the client from the archive" inside /usr/local/bin/codehub version >/dev/null
	# A file that is not the one in checksums.txt.
	mkdir "$work/damaged"
	cp "$new"/checksums.txt "$work/damaged/"
	echo damaged >"$work/damaged/$(deb "$new" codehub)"
	docker cp "$work/damaged" "$machine:/opt/damaged" >/dev/null
	expect "a damaged file is refused" sh -c "! docker exec $machine sh /packages/install.sh --from file:///opt/damaged 2>$work/refused"
	say "install.sh: deb installed, client from the archive; refused: $(sed 's/^install: //' "$work/refused")"
}

releases "$@"
check_lintian
boot
check_install
check_ide
check_secret
check_unit
check_watchdog
open_session
change upgrade new
change downgrade old --allow-downgrades
check_back
check_remove
check_client
check_script
check_rpm
say "all that was to be shown was seen"
