package kubetest

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"
)

// EnforcePolicies makes the cluster's nodes apply NetworkPolicies by nftables, until stop is
// called or the test ends. Without it nothing does. It is for tests: IPv4 only; a connection
// that exists is not cut; a Pod is open until its status has its address; a named port counts
// for ingress alone.
func (c *Cluster) EnforcePolicies() (stop func()) {
	c.tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	factory := informers.NewSharedInformerFactory(c.Client, 0)
	e := &enforcer{
		tb:         c.tb,
		pods:       factory.Core().V1().Pods().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
		changed:    make(chan struct{}, 1),
	}
	for n := range 9 {
		e.spaces = append(e.spaces, fmt.Sprintf("/run/netns/codehub-k8s%d-%d", c.number, n+1))
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().Namespaces().Informer(), factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { e.note() }, UpdateFunc: func(any, any) { e.note() }, DeleteFunc: func(any) { e.note() },
		})
		if err != nil {
			c.tb.Fatal(err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	var group sync.WaitGroup
	group.Go(func() { e.run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
		for _, space := range e.spaces {
			// Also where the node or the table does not exist.
			_ = exec.Command("nsenter", "--net="+space, "nft", "delete", "table", "ip", tableName).Run()
		}
	})
	c.tb.Cleanup(stop)
	return stop
}

// enforcer applies the policies of a cluster.
type enforcer struct {
	tb         testing.TB
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister
	spaces     []string // network namespaces of the nodes, of which some exist
	changed    chan struct{}
}

func (e *enforcer) note() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

func (e *enforcer) run(ctx context.Context) {
	applied := map[string]string{} // by network namespace
	for {
		table, err := e.table()
		if err != nil {
			e.tb.Errorf("apply NetworkPolicies: %v", err)
		}
		for _, space := range e.spaces {
			if err != nil || applied[space] == table {
				continue
			}
			cmd := exec.CommandContext(ctx, "nsenter", "--net="+space, "nft", "-f", "-")
			cmd.Stdin = strings.NewReader(table)
			out, failed := cmd.CombinedOutput()
			switch {
			case failed == nil:
				applied[space] = table
			case ctx.Err() == nil && !bytes.Contains(out, []byte("No such file or directory")): // the node does not exist
				e.tb.Errorf("apply NetworkPolicies in %s: %v: %s", space, failed, out)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-e.changed:
		case <-time.After(time.Second): // a node that was added
		}
	}
}

const tableName = "codehub_policies"

// table returns the rules for nft, which replace those before in one step. All nodes have
// the same: a connection passes the egress rules and the ingress rules on each.
func (e *enforcer) table() (string, error) {
	pods, err := e.pods.List(labels.Everything())
	if err != nil {
		return "", err
	}
	policies, err := e.policies.List(labels.Everything())
	if err != nil {
		return "", err
	}
	pods = slices.DeleteFunc(slices.Clone(pods), func(p *corev1.Pod) bool {
		return p.Status.PodIP == "" || p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return strings.Compare(a.Status.PodIP, b.Status.PodIP) })
	slices.SortFunc(policies, func(a, b *networkingv1.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	var chains, egress, ingress strings.Builder
	for _, pod := range pods {
		out, in := []string{}, []string{}
		var isolatedOut, isolatedIn bool
		for _, p := range policies {
			if p.Namespace != pod.Namespace || !selects(&p.Spec.PodSelector, pod.Labels) {
				continue
			}
			if slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
				isolatedOut = true
				for _, r := range p.Spec.Egress {
					out = append(out, e.rules("daddr", p.Namespace, pods, r.To, r.Ports, nil)...)
				}
			}
			if slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) {
				isolatedIn = true
				for _, r := range p.Spec.Ingress {
					in = append(in, e.rules("saddr", p.Namespace, pods, r.From, r.Ports, pod)...)
				}
			}
		}
		chain := strings.ReplaceAll(pod.Status.PodIP, ".", "_")
		if isolatedOut {
			fmt.Fprintf(&egress, "  ip saddr %s jump from_%s\n", pod.Status.PodIP, chain)
			fmt.Fprintf(&chains, " chain from_%s {\n  %s\n }\n", chain, strings.Join(append(out, "counter drop"), "\n  "))
		}
		if isolatedIn {
			fmt.Fprintf(&ingress, "  ip daddr %s jump to_%s\n", pod.Status.PodIP, chain)
			fmt.Fprintf(&chains, " chain to_%s {\n  %s\n }\n", chain, strings.Join(append(in, "counter drop"), "\n  "))
		}
	}
	hook := func(name string) string {
		return fmt.Sprintf(" chain %s {\n  type filter hook %s priority 0; policy accept;\n  ct state established,related accept\n%s%s }\n", name, name, egress.String(), ingress.String())
	}
	return fmt.Sprintf("add table ip %[1]s\ndelete table ip %[1]s\nadd table ip %[1]s\ntable ip %[1]s {\n%[2]s%[3]s%[4]s}\n",
		tableName, chains.String(), hook("forward"), hook("input")), nil
}

// rules are what lets packets to or from the peers pass a Pod's chain. Named ports are those
// of the target, if it is given.
func (e *enforcer) rules(address, namespace string, pods []*corev1.Pod, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, target *corev1.Pod) []string {
	matches := []string{}
	if len(peers) == 0 {
		matches = append(matches, "")
	}
	for _, peer := range peers {
		if block := peer.IPBlock; block != nil {
			match := fmt.Sprintf("ip %s %s ", address, block.CIDR)
			if except := ipv4(block.Except); len(except) > 0 {
				match += fmt.Sprintf("ip %s != { %s } ", address, strings.Join(except, ", "))
			}
			if len(ipv4([]string{block.CIDR})) > 0 {
				matches = append(matches, match)
			}
			continue
		}
		addresses := []string{}
		for _, pod := range pods {
			if e.isPeer(&peer, namespace, pod) {
				addresses = append(addresses, pod.Status.PodIP)
			}
		}
		if len(addresses) > 0 {
			matches = append(matches, fmt.Sprintf("ip %s { %s } ", address, strings.Join(addresses, ", ")))
		}
	}
	rules := []string{}
	for _, match := range matches {
		if len(ports) == 0 {
			rules = append(rules, match+"return")
		}
		for _, port := range ports {
			if expression, ok := portMatch(port, target); ok {
				rules = append(rules, match+expression+" return")
			}
		}
	}
	return rules
}

// isPeer says whether a Pod is one of those that a peer of a policy names.
func (e *enforcer) isPeer(peer *networkingv1.NetworkPolicyPeer, namespace string, pod *corev1.Pod) bool {
	if peer.NamespaceSelector == nil {
		if pod.Namespace != namespace {
			return false
		}
	} else if ns, err := e.namespaces.Get(pod.Namespace); err != nil || !selects(peer.NamespaceSelector, ns.Labels) {
		return false
	}
	return peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels)
}

func selects(selector *metav1.LabelSelector, set map[string]string) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(labels.Set(set))
}

// portMatch is the expression for a port of a policy, unless no port has its name.
func portMatch(p networkingv1.NetworkPolicyPort, target *corev1.Pod) (string, bool) {
	protocol := "tcp"
	if p.Protocol != nil {
		protocol = strings.ToLower(string(*p.Protocol))
	}
	switch {
	case p.Port == nil:
		return "meta l4proto " + protocol, true
	case p.EndPort != nil:
		return fmt.Sprintf("%s dport %d-%d", protocol, p.Port.IntValue(), *p.EndPort), true
	case p.Port.Type == intstr.Int:
		return fmt.Sprintf("%s dport %d", protocol, p.Port.IntValue()), true
	case target != nil:
		for _, container := range target.Spec.Containers {
			for _, port := range container.Ports {
				if port.Name == p.Port.StrVal {
					return fmt.Sprintf("%s dport %d", protocol, port.ContainerPort), true
				}
			}
		}
	}
	return "", false
}

// ipv4 returns the prefixes of IPv4.
func ipv4(prefixes []string) []string {
	return slices.DeleteFunc(slices.Clone(prefixes), func(s string) bool {
		p, err := netip.ParsePrefix(s)
		return err != nil || !p.Addr().Is4()
	})
}
