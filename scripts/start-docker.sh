#!/usr/bin/env bash
# Starts Docker Engine unless it answers already, and waits until it does.
set -euo pipefail
cd "$(dirname "$0")"
source messages.sh

log=/var/log/codehub-dockerd.log
socket=/var/run/docker.sock

# engine_pid prints the process id in a pid file if a process of that name has it
# and lives: one that was killed keeps its entry until somebody has waited for it.
engine_pid() {
	local pid
	pid=$(cat "$1" 2>/dev/null) || return 0
	if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status" 2>/dev/null; then
		echo "$pid"
	fi
}

# remove_stale_pid_files lets the engine start on a machine that died: it refuses to
# as long as any process, even another program's, has the number it left behind.
remove_stale_pid_files() {
	local entry file name
	for entry in /var/run/docker.pid:dockerd /var/run/docker/containerd/containerd.pid:containerd; do
		file=${entry%:*} name=${entry#*:}
		if [ -e "$file" ] && [ -z "$(engine_pid "$file" "$name")" ]; then
			echo "setup: removing $file, left by an engine that is gone"
			as_root rm -f "$file"
		fi
	done
	# A system containerd's socket alone makes the engine wait for that containerd.
	file=/run/containerd/containerd.sock
	if [ -S "$file" ] && ! grep -qsx containerd /proc/[0-9]*/comm; then
		echo "setup: removing $file, left by a containerd that is gone"
		as_root rm -f "$file"
	fi
}

start_engine() {
	if [ -d /run/systemd/system ]; then
		as_root systemctl start docker || die "Docker Engine does not start: see journalctl -u docker"
		return
	fi
	if [ -n "$(engine_pid /var/run/docker.pid dockerd)" ]; then
		return # starting, or started by somebody else
	fi
	remove_stale_pid_files
	# In a session of its own, so that it survives this script and its terminal.
	as_root setsid --fork sh -c "exec dockerd >>$log 2>&1 </dev/null"
}

# set_aside_networks moves Docker's record of its networks aside if the engine ended
# because of it: Docker 20.10 never starts again after a power cut, or kill -9, while a
# network was being made. It then makes its own networks again, and codehub its own.
set_aside_networks() {
	local record=/var/lib/docker/network/files/local-kv.db
	as_root tail -n 30 "$log" | grep -q 'libnetwork.*reservePools' || return 1
	as_root mv "$record" "$record.broken" 2>/dev/null || return 1
	echo "setup: Docker ended on a network that it had not finished; its record of networks is now $record.broken"
}

wait_for_engine() {
	local second
	for second in $(seq 1 600); do
		if as_root docker version >/dev/null 2>&1; then
			return
		fi
		if [ "$second" -gt 50 ] && [ ! -d /run/systemd/system ] && [ -z "$(engine_pid /var/run/docker.pid dockerd)" ]; then
			break # it has ended
		fi
		sleep 0.1
	done
	if [ ! -d /run/systemd/system ] && set_aside_networks; then
		start_engine
		wait_for_engine # once more at most: a new record has no such network
		return
	fi
	echo "setup: Docker Engine does not answer; the end of $log:" >&2
	as_root tail -n 20 "$log" >&2 || true
	die "Docker Engine does not start (see above)"
}

if docker_answers; then
	exit 0
fi
if [ -n "${DOCKER_HOST:-}" ]; then
	die "the Docker Engine at DOCKER_HOST=$DOCKER_HOST does not answer: start it, or unset DOCKER_HOST to use this machine's"
fi
can_be_root || die "Docker Engine does not answer: as root, start it (systemctl start docker, or dockerd), and let this user in (usermod -aG docker $(id -un), then log in anew)"
begin=$SECONDS
start_engine
wait_for_engine
echo "setup: start Docker Engine: $(seconds $((SECONDS - begin)))"

if ! docker_answers; then
	# It answers to root and not to this user.
	if ! id -nG "$(id -un)" | grep -qw docker; then
		echo "setup: letting $(id -un) use Docker (group docker, which amounts to root on this machine; new logins have it)"
		as_root usermod -aG docker "$(id -un)"
	fi
	sg docker -c 'docker version' >/dev/null 2>&1 ||
		die "$(id -un) may not use $socket: give the group docker access to it, then log in anew"
fi
