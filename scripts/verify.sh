#!/usr/bin/env bash
# Runs all tests, one shard after the other, or one of the six.
#
#	verify.sh [SHARD/6] [FLAGS of go test]
#
#	1  the race detector in the database, the controller and what they use
#	2  the race detector in the proxy, SSH, the agent and the API
#	3  the packages of neither, and project quotas in a virtual machine
#	4  Docker, and one round of each fault of the soak
#	5  Kubernetes
#	6  end to end
set -uo pipefail
cd "$(dirname "$0")/.." || exit
source scripts/gotestsum.sh
export CODEHUB_TEST_TIER=verify

# Goroutines of these share state.
race1='archive|postgres|postgres/embedded|control/(reconcile|lease|gc)|bus(/.*)?|running/(ttl|usage)|users/(auth|signin)|base/(breaker|flow)|storage/.*'
race2='web/(proxy|sshgate|httpapi)|running/(attach|frominside|ports)|runtime/agent(/.*)?|gateway/.*|server|control/replica|testing/agenttest'
docker='runtime/docker(/.*)?|testing/soak(/.*)?|testing/dockertest'
kube='runtime/kube(/.*)?|testing/kubetest'
cluster='^Test(Kubernetes|Chart|ServersOnCluster)'

packages=$(go list ./...) || exit
# only PATTERN prints the packages below internal that match.
only() { grep -E "^codehub/internal/($1)$" <<<"$packages"; }
rest() { grep -vE "^codehub/internal/($race1|$race2|$docker|$kube|testing/e2e)$" <<<"$packages"; }

# shellcheck disable=SC2046,SC2086 # a word for each package
shard() {
	local flags=(-count=1 -timeout 1h "${@:2}") # an hour, for machines that do other work
	case $1 in
	1) CGO_ENABLED=1 run "the race detector, 1 of 2" -race -p 2 "${flags[@]}" $(only "$race1") ;;
	2) CGO_ENABLED=1 run "the race detector, 2 of 2" -race -p 2 "${flags[@]}" $(only "$race2") ;;
	3)
		run "the other packages" -p 2 "${flags[@]}" $(rest)
		scripts/setup.sh quota && scripts/project-quota.sh || failed=1
		;;
	4) run "Docker, and faults" -p 2 "${flags[@]}" $(only "$docker") ;;
	5)
		run "Kubernetes" -p 1 "${flags[@]}" $(only "$kube")
		run "Kubernetes, end to end" -run "$cluster" "${flags[@]}" codehub/internal/testing/e2e
		;;
	6) run "end to end" -skip "$cluster" "${flags[@]}" codehub/internal/testing/e2e ;;
	esac
}

case ${1:-} in
[1-6]/6) shard "${1%/6}" "${@:2}" ;;
'') for each in 1 2 3 4 5 6; do shard "$each" "${@:2}"; done ;;
*) echo "verify: a shard is 1/6 to 6/6, not $1" >&2 && exit 2 ;;
esac
finish
