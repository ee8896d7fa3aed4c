#!/usr/bin/env bash
# Runs a real Kubernetes for tests on this machine: one control plane, and nodes that each
# have a network namespace, a containerd and a kubelet of their own. It takes root.
#
#	kube.sh tools            builds the programs, once for each version of them
#	kube.sh kubeconform      builds the program that checks manifests, and prints its path
#	                         and those of the API definitions that it checks against
#	kube.sh up NODES         starts a cluster, and prints the path of its kubeconfig
#	kube.sh node NUMBER      adds a node
#	kube.sh nodedown NUMBER  removes a node as a lost machine would be
#	kube.sh kwok CONFIG      starts kwok, which plays the kubelets of nodes that do not exist
#	kube.sh part NAME CMD    CMD is stop or start, of one process
#	kube.sh down             ends the cluster and removes what it left
#
# KUBE_NUMBER (0 to 9) tells clusters that run at the same time apart. KUBE_IMAGES is a file
# of `docker save` with images that every node gets.
set -euo pipefail
cd "$(dirname "$0")"
source messages.sh

containerd_version=v2.4.2
runc_version=v1.5.2
kubernetes_version=v1.36.3
helm_version=v3.22.0 # installs the chart in tests
kwok=v0.8.0          # only for benchmarks, so it is built when one needs it
kubeconform=v0.8.0   # only for the chart's test, so it is built when that needs it
gateway_api=v1.6.3   # whose HTTPRoute the chart can create
operator=v0.85.0     # of Prometheus, whose ServiceMonitor and PrometheusRule the chart can create

number=${KUBE_NUMBER:-0}
[[ $number =~ ^[0-9]$ ]] || die "KUBE_NUMBER is a digit, not $number"
state=/var/lib/codehub-kube/$number
keys=$state/keys
address=10.$((200 + number)).0.1
bridge=codehub-k8s$number
export no_proxy='*'

# tools is where the programs are: built anew when what they are built from changes.
tools() {
	local key
	key=$(cat <(grep -E "^[a-z]+_version=" kube.sh) <(declare -f build_into) kubebox/go.sum kubebox/main.go kubebox/pause/main.go | sha256sum | cut -c1-16)
	echo "${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codehub/kube-$key"
}

build_tools() {
	local bin
	bin=$(tools)
	[ -e "$bin/complete" ] && return
	# The last program that is built needs it.
	pkg-config --exists libseccomp || die "the container runtime needs the library libseccomp: apt-get install --no-install-recommends libseccomp-dev pkg-config"
	mkdir -p "$bin"
	# Tests of several packages may come here at once.
	flock "$bin" "./kube.sh" build
}

# build_into FOLDER builds the programs, unless another process has just done so.
build_into() {
	local bin=$1
	[ -e "$bin/complete" ] && return
	echo "setup: building Kubernetes $kubernetes_version, containerd $containerd_version, runc $runc_version and helm $helm_version for the tests (six minutes the first time)" >&2
	local version=k8s.io/component-base/version charts=helm.sh/helm/v3/pkg
	# The version of Kubernetes that charts are rendered and checked for.
	local helm=(-X "$charts/chartutil.k8sVersionMajor=1" -X "$charts/chartutil.k8sVersionMinor=36" -X "$charts/lint/rules.k8sVersionMajor=1" -X "$charts/lint/rules.k8sVersionMinor=36")
	(cd kubebox && GOFLAGS='' CGO_ENABLED=0 go build -trimpath -o "$bin/kubebox" \
		-ldflags "-s -w -X $version.gitVersion=$kubernetes_version -X $version.gitMajor=1 -X $version.gitMinor=36" .)
	(cd kubebox && GOFLAGS='' CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$bin/pause" ./pause)
	(cd / && GOFLAGS='' GOBIN=$bin go install \
		"github.com/containerd/containerd/v2/cmd/containerd@$containerd_version" \
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@$containerd_version" \
		"github.com/containerd/containerd/v2/cmd/ctr@$containerd_version")
	(cd / && GOFLAGS='' GOBIN=$bin CGO_ENABLED=0 go install -ldflags "-s -w ${helm[*]}" "helm.sh/helm/v3/cmd/helm@$helm_version")
	(cd / && GOFLAGS='' GOBIN=$bin CGO_ENABLED=1 go install -tags seccomp "github.com/opencontainers/runc@$runc_version")
	local part
	for part in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
		ln -sfn kubebox "$bin/$part"
	done
	touch "$bin/complete"
}

# begin NAME COMMAND… starts a process in the background, and remembers how.
begin() {
	local name=$1
	shift
	printf '%q ' "$@" >"$state/run/$name.command"
	nohup "$@" >>"$state/log/$name.log" 2>&1 </dev/null &
	echo $! >"$state/run/$name.pid"
}

# finish NAME [SIGNAL] ends a process and waits until it has ended, for 5 s.
finish() {
	local file=$state/run/$1.pid pid
	[ -f "$file" ] || return 0
	pid=$(cat "$file")
	kill -s "${2:-TERM}" "$pid" 2>/dev/null || true
	for _ in $(seq 50); do
		grep -qs '^State:.[^ZX]' "/proc/$pid/status" || break
		sleep 0.1
	done
	kill -s KILL "$pid" 2>/dev/null || true
	rm -f "$file"
}

# part lets a test stop one process of the cluster, and start it again as it was.
part() {
	local name=$1
	[ -f "$state/run/$name.command" ] || die "the cluster has no process $name"
	case $2 in
	stop) finish "$name" KILL ;;
	start) eval "begin $name $(cat "$state/run/$name.command")" ;;
	*) die "the commands of a part are stop and start" ;;
	esac
}

# certificate NAME SUBJECT USAGE [NAMES] makes a key, a certificate and a kubeconfig.
certificate() {
	local file=$keys/$1
	openssl ecparam -genkey -name prime256v1 -noout -out "$file.key"
	openssl req -new -key "$file.key" -subj "$2" -out "$file.csr"
	{
		echo keyUsage=critical,digitalSignature,keyEncipherment
		echo "extendedKeyUsage=$3"
		[ -z "${4:-}" ] || echo "subjectAltName=$4"
	} >"$file.ext"
	openssl x509 -req -in "$file.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -CAcreateserial -days 3650 -extfile "$file.ext" -out "$file.crt" 2>/dev/null
	cat >"$file.kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: it
contexts: [{name: it, context: {cluster: it, user: it}}]
clusters: [{name: it, cluster: {server: "https://$address:6443", certificate-authority-data: $(base64 -w 0 "$keys/ca.crt")}}]
users: [{name: it, user: {client-certificate: $file.crt, client-key: $file.key}}]
CONFIG
}

certificates() {
	openssl ecparam -genkey -name prime256v1 -noout -out "$keys/ca.key"
	openssl req -x509 -new -key "$keys/ca.key" -subj /CN=codehub-kube -days 3650 -out "$keys/ca.crt"
	openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
	openssl rsa -in "$keys/accounts.key" -pubout -out "$keys/accounts.pub" 2>/dev/null
	certificate apiserver /CN=kube-apiserver serverAuth \
		"DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:$address"
	certificate kubeletclient /O=system:masters/CN=apiserver-kubelet-client clientAuth
	certificate admin /O=system:masters/CN=admin clientAuth
	certificate manager /CN=system:kube-controller-manager clientAuth
	certificate scheduler /CN=system:kube-scheduler clientAuth
	certificate proxy /CN=system:kube-proxy clientAuth
}

# answers says whether the API server is ready.
answers() {
	[ "$(curl -s --max-time 2 --cacert "$keys/ca.crt" --cert "$keys/admin.crt" --key "$keys/admin.key" "https://$address:6443/readyz")" = ok ]
}

# until_true SECONDS COMMAND… waits for a command to succeed.
until_true() {
	local end=$((SECONDS + $1))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || die "the cluster is not ready, because this does not succeed: $*; its logs are in $state/log"
		sleep 0.1
	done
}

control_plane() {
	local bin=$1 store=http://127.0.0.1:$((23790 + number))
	mkdir -p "$keys" "$state/log" "$state/run"
	certificates
	ip link add "$bridge" type bridge
	ip addr add "$address/24" dev "$bridge"
	ip link set "$bridge" up
	# Docker drops what it does not know.
	iptables -I FORWARD -i "$bridge" -o "$bridge" -j ACCEPT
	begin etcd "$bin/etcd" --data-dir "$state/etcd" --listen-client-urls "$store" --advertise-client-urls "$store" \
		--listen-peer-urls "http://127.0.0.1:$((23890 + number))" --unsafe-no-fsync
	cat >"$state/audit.yaml" <<CONFIG
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: None}
CONFIG
	begin apiserver "$bin/kube-apiserver" --etcd-servers="$store" --bind-address="$address" --advertise-address="$address" --secure-port=6443 \
		--audit-policy-file="$state/audit.yaml" --audit-log-path="$state/log/audit.json" \
		--tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" --client-ca-file="$keys/ca.crt" \
		--service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$keys/accounts.pub" \
		--service-account-signing-key-file="$keys/accounts.key" --service-cluster-ip-range=10.96.0.0/16 \
		--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
		--kubelet-certificate-authority="$keys/ca.crt" --kubelet-client-certificate="$keys/kubeletclient.crt" \
		--kubelet-client-key="$keys/kubeletclient.key" --kubelet-preferred-address-types=InternalIP \
		--default-not-ready-toleration-seconds=10 --default-unreachable-toleration-seconds=10
	# Before that, the others end.
	until_true 60 answers
	begin manager "$bin/kube-controller-manager" --kubeconfig="$keys/manager.kubeconfig" --authentication-kubeconfig="$keys/manager.kubeconfig" \
		--authorization-kubeconfig="$keys/manager.kubeconfig" --bind-address=127.0.0.1 --secure-port=0 --leader-elect=false \
		--root-ca-file="$keys/ca.crt" --service-account-private-key-file="$keys/accounts.key" --use-service-account-credentials=true \
		--enable-hostpath-provisioner=true --node-monitor-grace-period=12s --node-monitor-period=2s --kube-api-qps=500 --kube-api-burst=1000
	cat >"$state/scheduler.yaml" <<CONFIG
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: $keys/scheduler.kubeconfig, qps: 500, burst: 1000}
CONFIG
	begin scheduler "$bin/kube-scheduler" --config="$state/scheduler.yaml" --authentication-kubeconfig="$keys/scheduler.kubeconfig" \
		--authorization-kubeconfig="$keys/scheduler.kubeconfig" --bind-address=127.0.0.1 --secure-port=0
}

controllers="cpu cpuacct cpuset memory devices freezer blkio pids systemd"

# node NUMBER adds a node. The first has the system's containerd, if there is one, which
# may know less of Kubernetes than the others' does.
node() {
	local n=$1 bin=$2
	local name=node$n ip=10.$((200 + number)).0.$((10 + n)) dir=$state/node$n space=codehub-k8s$number-$n
	local pods=10.$((220 + number))
	local path=$bin:$PATH other c
	if [ "$n" = 1 ] && PATH=/usr/sbin:/usr/bin:/sbin:/bin command -v containerd >/dev/null; then
		path=/usr/sbin:/usr/bin:/sbin:/bin
	fi
	# The root of a user namespace, who is another user here, passes through the last two.
	mkdir -p "$dir/cni" "$dir/certs.d" "$dir/containerd" "$dir/kubelet/pods"
	ip netns add "$space"
	ip link add "ck$number-$n" type veth peer name eth0 netns "$space"
	ip link set "ck$number-$n" master "$bridge" up
	ip -n "$space" link set lo up
	ip -n "$space" addr add "$ip/24" dev eth0
	ip -n "$space" link set eth0 up
	ip -n "$space" route add default via "$address"
	ip route replace "$pods.$n.0/24" via "$ip"
	for other in $(seq 9); do
		[ "$other" = "$n" ] || ip -n "$space" route add "$pods.$other.0/24" via "10.$((200 + number)).0.$((10 + other))"
	done
	nsenter --net="/run/netns/$space" sysctl -qw net.ipv4.ip_forward=1
	certificate "$name" "/O=system:nodes/CN=system:node:$name" clientAuth,serverAuth "DNS:$name,IP:$ip"
	cat >"$dir/cni/10-bridge.conflist" <<CONFIG
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
		"ranges": [[{"subnet": "$pods.$n.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "$dir/ipam"}},
	{"type": "portmap", "capabilities": {"portMappings": true}}]}
CONFIG
	cat >"$dir/containerd.toml" <<CONFIG
version = 2
root = "$dir/containerd/root"
state = "$dir/containerd/state"
[grpc]
  address = "$dir/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "codehub/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$dir/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$dir/certs.d"
CONFIG
	cat >"$dir/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$space
containerRuntimeEndpoint: unix://$dir/containerd.sock
address: $ip
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $keys/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $keys/$name.crt
tlsPrivateKeyFile: $keys/$name.key
clusterDomain: cluster.local
clusterDNS: [10.96.0.10]
resolvConf: ""
failSwapOn: false
podLogsDir: $dir/podlogs
volumePluginDir: $dir/volplugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
nodeStatusUpdateFrequency: 4s
maxPods: 250
enforceNodeAllocatable: []
CONFIG
	for c in $controllers; do mkdir -p "/sys/fs/cgroup/$c/$space"; done
	for c in cpus mems; do cat "/sys/fs/cgroup/cpuset/cpuset.$c" >"/sys/fs/cgroup/cpuset/$space/cpuset.$c"; done
	begin "$name-containerd" env "PATH=$path" nsenter "--net=/run/netns/$space" containerd -c "$dir/containerd.toml"
	local ctr=(env "PATH=$path" ctr -a "$dir/containerd.sock" -n k8s.io) # of the same version
	until_true 30 "${ctr[@]}" version
	"${ctr[@]}" images import "$state/pause.tar" >/dev/null
	[ -z "${KUBE_IMAGES:-}" ] || "${ctr[@]}" images import "$KUBE_IMAGES" >/dev/null
	begin "$name-kubelet" nsenter "--net=/run/netns/$space" "$bin/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$keys/$name.kubeconfig" \
		--hostname-override="$name" --node-ip="$ip" --root-dir="$dir/kubelet" --cert-dir="$keys"
	begin "$name-proxy" nsenter "--net=/run/netns/$space" "$bin/kube-proxy" --kubeconfig="$keys/proxy.kubeconfig" --hostname-override="$name" \
		--proxy-mode=iptables "--cluster-cidr=$pods.0.0/16" --healthz-bind-address=127.0.0.1:10256 --conntrack-max-per-core=0 --conntrack-min=0 \
		--conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
}

# kwok CONFIG builds kwok and starts it.
kwok() {
	local bin
	bin=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codehub/kwok-$kwok
	mkdir -p "$bin"
	if [ ! -e "$bin/kwok" ]; then
		echo "setup: building kwok $kwok (two minutes the first time)" >&2
		(cd / && GOFLAGS='' GOBIN=$bin go install "sigs.k8s.io/kwok/cmd/kwok@$kwok")
	fi
	begin kwok "$bin/kwok" --kubeconfig="$keys/admin.kubeconfig" --config="$1" --manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake \
		--node-lease-duration-seconds=20 --server-address=
}

# module FOLDER MODULE prints the folder of a Go module, which it downloads once. MODULE has a
# version, or is one that the go.mod of FOLDER names.
module() {
	local found
	found=$(cd "$1" && GOFLAGS='' go mod download -json "$2") || die "download $2: $found"
	sed -n 's/^\t"Dir": "\(.*\)",$/\1/p' <<<"$found"
}

# kubeconform builds kubeconform, and prints its path, that of the OpenAPI document of the
# Kubernetes that the clusters are, and those of custom resources that the chart can create.
kubeconform() {
	local bin file kubernetes gateway prometheus
	bin=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/codehub/kubeconform-$kubeconform
	mkdir -p "$bin"
	(
		flock 9 # tests may come here at once
		if [ ! -e "$bin/complete" ]; then
			echo "setup: kubeconform $kubeconform" >&2
			(cd / && GOFLAGS='' GOBIN=$bin CGO_ENABLED=0 go install "github.com/yannh/kubeconform/cmd/kubeconform@$kubeconform")
			touch "$bin/complete"
		fi
	) 9>"$bin/lock"
	kubernetes=$(module kubebox k8s.io/kubernetes)
	gateway=$(module / "sigs.k8s.io/gateway-api@$gateway_api")
	prometheus=$(module / "github.com/prometheus-operator/prometheus-operator@$operator")
	for file in "$bin/kubeconform" \
		"$kubernetes/api/openapi-spec/swagger.json" \
		"$gateway/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml" \
		"$prometheus/example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml" \
		"$prometheus/example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml"; do
		[ -f "$file" ] || die "there is no $file"
		echo "$file"
	done
}

# pause_image writes the image of every Pod's first process as `docker save` would.
pause_image() {
	local bin=$1 dir layer
	dir=$(mktemp -d)
	cp "$bin/pause" "$dir/pause"
	tar -C "$dir" --owner=0 --group=0 --mtime=@0 -cf "$dir/layer.tar" pause
	layer=$(sha256sum "$dir/layer.tar" | cut -d' ' -f1)
	echo "{\"architecture\": \"$(cd / && go env GOARCH)\", \"os\": \"linux\", \"config\": {\"Entrypoint\": [\"/pause\"], \"User\": \"65535:65535\"}, \"rootfs\": {\"type\": \"layers\", \"diff_ids\": [\"sha256:$layer\"]}}" >"$dir/config.json"
	echo '[{"Config": "config.json", "RepoTags": ["docker.io/codehub/pause:1"], "Layers": ["layer.tar"]}]' >"$dir/manifest.json"
	tar -C "$dir" -cf "$state/pause.tar" manifest.json config.json layer.tar
	rm -rf "$dir"
}

up() {
	local bin nodes=$1 n
	build_tools
	bin=$(tools)
	[ ! -e "$state" ] || down
	mkdir -p "$state"
	pause_image "$bin"
	control_plane "$bin"
	for n in $(seq "$nodes"); do node "$n" "$bin"; done
	export KUBECONFIG=$keys/admin.kubeconfig
	for n in $(seq "$nodes"); do until_true 90 "$bin/kubectl" wait --for=condition=Ready "node/node$n" --timeout=60s; done
	until_true 60 "$bin/kubectl" get serviceaccount default
	echo "$KUBECONFIG"
}

# remove_node removes what a node has. Nothing tells the cluster.
remove_node() {
	local n=$1 dir=$state/node$1 space=codehub-k8s$number-$1 bin id c
	bin=$(tools)
	local ctr=("$bin/ctr" -a "$dir/containerd.sock" -n k8s.io)
	finish "node$n-kubelet" KILL
	finish "node$n-proxy" KILL
	local spaces
	spaces=$(for id in $("${ctr[@]}" containers ls -q 2>/dev/null); do "${ctr[@]}" containers info "$id"; done | grep -oE 'netns/cni-[0-9a-f-]+' | sort -u || true)
	for id in $("${ctr[@]}" tasks ls -q 2>/dev/null); do "${ctr[@]}" tasks kill -s 9 "$id" >/dev/null 2>&1 || true; done
	sleep 0.3
	for id in $("${ctr[@]}" tasks ls -q 2>/dev/null); do "${ctr[@]}" tasks rm -f "$id" >/dev/null 2>&1 || true; done
	for id in $("${ctr[@]}" containers ls -q 2>/dev/null); do "${ctr[@]}" containers rm "$id" >/dev/null 2>&1 || true; done
	finish "node$n-containerd"
	grep -oE " $dir/[^ ]*" /proc/mounts | sort -r | xargs -r umount -l || true
	for id in $spaces; do ip netns del "${id#netns/}" 2>/dev/null || true; done
	ip link del "ck$number-$n" 2>/dev/null || true
	ip netns del "$space" 2>/dev/null || true
	ip route del "10.$((220 + number)).$n.0/24" 2>/dev/null || true
	for c in $controllers unified; do
		if [ -d "/sys/fs/cgroup/$c/$space" ]; then
			find "/sys/fs/cgroup/$c/$space" -depth -type d -exec rmdir {} \; 2>/dev/null || true
		fi
	done
	rm -rf "$dir"
}

# remove_volumes removes the folders of all volumes that the cluster has made. Their place is
# the same for all clusters of the machine, so that etcd's files are searched for their names.
remove_volumes() {
	[ -d "$state/etcd" ] || return 0
	{ grep -raohE '/tmp/hostpath_pv/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}' "$state/etcd" || true; } | sort -u | xargs -r rm -rf
	rmdir /tmp/hostpath_pv 2>/dev/null || true # unless another cluster has some
}

down() {
	local dir
	for dir in "$state"/node*; do
		[ ! -d "$dir" ] || remove_node "${dir##*node}"
	done
	finish kwok
	finish scheduler
	finish manager
	finish apiserver KILL
	finish etcd KILL
	remove_volumes
	iptables -D FORWARD -i "$bridge" -o "$bridge" -j ACCEPT 2>/dev/null || true
	ip link del "$bridge" 2>/dev/null || true
	rm -rf "$state"
}

[[ ${1:-} =~ ^(tools|build|kubeconform)$ || $EUID = 0 ]] || die "a cluster takes root"
case ${1:-} in
tools)
	build_tools
	tools
	;;
kubeconform) kubeconform ;;
build) build_into "$(tools)" ;; # only for build_tools
up) up "${2:?the number of nodes}" ;;
node) node "${2:?the number of the node}" "$(tools)" ;;
nodedown) remove_node "${2:?the number of the node}" ;;
kwok) kwok "${2:?the file with its settings}" ;;
part) part "${2:?the name of the process}" "${3:?a command}" ;;
down) down ;;
*) die "usage: kube.sh tools | kubeconform | up NODES | node NUMBER | nodedown NUMBER | kwok CONFIG | part NAME COMMAND | down" ;;
esac
