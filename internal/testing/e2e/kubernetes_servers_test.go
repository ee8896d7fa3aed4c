package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/api"
	codehub "codehub/client"
	"codehub/internal/runtime"
	"codehub/internal/testing/e2e/proc"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/kubetest"
	"codehub/internal/workspace"
)

// Three servers share a cluster of three nodes, PostgreSQL, Redis and a bucket. A user works
// in the real IDE through a server that does not lead; 1,000 starts keep to the limit; an
// unused workspace stops and a used one does not; the leader is killed during starts; the
// kubelets restart; a node is cut off, and one is lost. At no time two Pods run on one home.
func TestServersOnCluster(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	const global = 4
	b := s3Bucket(t)
	k, settings := clusterSettings(t, b, clusterImages{nodes: 3, ide: harness.IDEImage(), workspace: env.slimImage})
	c := startCluster(t, clusterOptions{
		servers: 3, redis: true, bucket: b, limits: limits{global: global},
		settings: append(settings, fmt.Sprint("MAX_RUNNING_GLOBAL=", global), "MAX_RUNNING_PER_USER=0", "CODEHUB_WORKSPACE_CPUS=1", "CODEHUB_WORKSPACE_MEMORY=1g", "CODEHUB_TTL_INTERVAL=1s", "CODEHUB_ACTIVITY_FLUSH_INTERVAL=1s"),
	})
	for _, m := range c.members {
		m.runtime = clusterState{k}
	}
	w := watchHomes(t, k)
	t.Run("day", func(t *testing.T) { c.dayOnCluster(t) })
	t.Run("limits", func(t *testing.T) { c.limitsOnCluster(t, w, global) })
	t.Run("idle", func(t *testing.T) { c.idleOnCluster(t) })
	t.Run("leader", func(t *testing.T) { c.leaderOnCluster(t) })
	t.Run("kubelets", func(t *testing.T) { c.kubeletsOnCluster(t, k) })
	t.Run("nodes", func(t *testing.T) { c.nodesOnCluster(t, k) }) // the cluster has a node less afterwards
	w.check()
}

// homeWatch follows the Pods of all workspaces.
type homeWatch struct {
	t    *testing.T
	stop func()
	over chan struct{}

	mu       sync.Mutex
	admitted map[string]map[string]string // roles of the Pods that run or may, by workspace and name
	shared   []string                     // what went wrong
	most     int                          // workspaces that ran at once
}

// watchHomes watches until check is called, or the test ends.
func watchHomes(t *testing.T, k *kubetest.Cluster) *homeWatch {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	pods := k.Client.CoreV1().Pods(clusterNamespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	events, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	w := &homeWatch{t: t, stop: events.Stop, over: make(chan struct{}), admitted: map[string]map[string]string{}}
	go func() {
		defer close(w.over)
		for e := range events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				w.see(p, e.Type == "DELETED")
			}
		}
	}()
	return w
}

func (w *homeWatch) see(p *corev1.Pod, deleted bool) {
	id := p.Labels["codehub.dev/workspace"]
	if id == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.admitted[id] == nil {
		w.admitted[id] = map[string]string{}
	}
	if deleted || ended(p) || len(p.Spec.SchedulingGates) > 0 {
		delete(w.admitted[id], p.Name)
		return
	}
	w.admitted[id][p.Name] = p.Labels["codehub.dev/role"]
	if len(w.admitted[id]) > 1 {
		w.shared = append(w.shared, fmt.Sprint(id, ": ", w.admitted[id]))
	}
	running := 0
	for _, pods := range w.admitted {
		for _, role := range pods {
			if role == "workspace" {
				running++
			}
		}
	}
	w.most = max(w.most, running)
}

// ended reports whether all containers of a Pod have ended; it may be later that its phase says
// so.
func ended(p *corev1.Pod) bool {
	runs := func(s corev1.ContainerStatus) bool { return s.State.Terminated == nil }
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed ||
		len(p.Status.ContainerStatuses) == len(p.Spec.Containers) && !slices.ContainsFunc(p.Status.ContainerStatuses, runs)
}

// check ends the watch and reports homes that two Pods used at the same time.
func (w *homeWatch) check() {
	w.t.Helper()
	select {
	case <-w.over:
		w.t.Error("the watch of the Pods ended early")
	default:
	}
	w.stop()
	<-w.over
	for _, what := range w.shared {
		w.t.Errorf("two Pods use the home of workspace %s", what)
	}
}

// mostAtOnce returns how many workspaces ran at once, since the last call.
func (w *homeWatch) mostAtOnce() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	most := w.most
	w.most = 0
	return most
}

// dayOnCluster is a user's day on a server that does not lead.
func (c *cluster) dayOnCluster(t *testing.T) {
	m := c.otherThan(c.awaitLeader())
	s := m.asUser(test{t}, m.token)
	b := newBrowser(t, s.URL)
	b.login(s.URL, proc.AdminPassword)
	b.do("create a workspace", chromedp.Click("#new-workspace"), chromedp.WaitVisible("#f-name"), chromedp.SendKeys("#f-name", "compiler"),
		chromedp.Click("#dialog-form button[type=submit]"), chromedp.WaitVisible(".card"),
		until(`document.querySelector('.card')?.dataset.phase === 'RUNNING' && document.querySelector('.card').dataset.operation === 'NONE'`))
	list, err := s.api.List(t.Context(), clientFilter)
	if err != nil || len(list) != 1 {
		t.Fatalf("workspaces: %v, %v, want one", list, err)
	}
	id := list[0].ID
	card := func(phase string) string {
		return fmt.Sprintf(`(c => c?.dataset.phase === %q && c.dataset.operation === 'NONE')(document.getElementById('ws-%s'))`, phase, id)
	}
	editIDESettings(t, "/home/coder", "env", "CODEHUB_URL="+s.URL, "CODEHUB_SESSION_TOKEN="+s.token, env.binary, "exec", id, "--")
	b.do("open it", navigate(s.URL+"/w/"+id+"/"))
	b.terminal()
	b.shell("echo $((6 * 7))-works | tee proof.txt", "42-works")
	b.do("stop it", navigate(s.URL+"/"), chromedp.WaitVisible("#ws-"+id), chromedp.Click("#ws-"+id+" form[action$='/stop'] button"), until(card("STANDBY")))
	b.do("open it again", navigate(s.URL+"/w/"+id+"/"))
	b.terminal() // the loading page opens the workspace without a click
	b.shell("cat proof.txt; echo $((1 + 1))nd-time", "2nd-time")
	b.do("archive it", navigate(s.URL+"/"), until(card("RUNNING")), chromedp.Click("#menu-"+id+" summary"), chromedp.Click("#"+cssID(id+"-archive")),
		chromedp.WaitVisible("dialog[open] #dialog-form"), chromedp.Click("#dialog-form button[type=submit]"), until(card("ARCHIVED")))
	b.do("restore it", navigate(s.URL+"/w/"+id+"/"), chromedp.WaitVisible("#"+cssID(id+"-start")), chromedp.Click("#"+cssID(id+"-start")))
	b.terminal()
	b.shell("cat proof.txt; echo $((1 + 2))rd-time", "3rd-time")
	shown, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](terminalShows("42-works")))
	if err != nil || !shown {
		t.Errorf("the file is not in the restored home: %v", err)
	}
	b.screenshot("restored")
	if _, err := s.api.Delete(t.Context(), id, true); err != nil {
		t.Fatal(err)
	}
	s.awaitGone(id)
}

// limitsOnCluster asks three servers 1,000 times at once to start one of a few workspaces.
func (c *cluster) limitsOnCluster(t *testing.T, w *homeWatch, global int) {
	const starts, workspaces = 1000, 8
	on := c.onCluster(t)
	ids := make([]string, workspaces)
	for i := range ids {
		ids[i] = on[i%len(on)].createStandby(fmt.Sprint("limited ", i))
	}
	w.mostAtOnce()
	var group sync.WaitGroup
	var mu sync.Mutex
	refused := map[string]bool{} // workspaces for which there was no slot
	slots := make(chan struct{}, 60)
	for i := range starts {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			id := ids[i%workspaces]
			_, err := on[i%len(on)].api.Want(t.Context(), id, "RUNNING", true)
			for n := 0; codehub.CodeOf(err) == "unavailable" && n < 10; n++ { // the lock of the limits was not free in time
				_, err = on[i%len(on)].api.Want(t.Context(), id, "RUNNING", true)
			}
			switch {
			case codehub.CodeOf(err) == "workspace_limit_exceeded":
				mu.Lock()
				refused[id] = true
				mu.Unlock()
			case err != nil:
				t.Errorf("start %d: %v", i, err)
			}
		})
	}
	group.Wait()
	if len(refused) != workspaces-global {
		t.Errorf("%d workspaces had no slot, want %d", len(refused), workspaces-global)
	}
	for _, id := range ids {
		if !refused[id] {
			on[0].awaitPhase(id, "RUNNING")
		}
	}
	if most := w.mostAtOnce(); most != global {
		t.Errorf("%d workspaces ran at once, want %d", most, global)
	}
	for _, id := range ids {
		if _, err := on[0].api.Delete(t.Context(), id, true); err != nil {
			t.Error(err)
		}
	}
	for _, id := range ids {
		on[0].awaitGone(id)
	}
}

// idleOnCluster has a workspace that nobody uses, and one that is used through a server that
// does not lead.
func (c *cluster) idleOnCluster(t *testing.T) {
	ttl := 20
	on := c.onCluster(t)
	create := func(name string) string {
		id := on[0].create(api.CreateWorkspace{Name: name, StandbyTTLSeconds: &ttl})
		on[0].awaitPhase(id, "RUNNING")
		return id
	}
	used, unused := create("used"), create("unused")
	stopped := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			on[2].shell(used, "true")
			select {
			case <-stopped:
				return
			case <-every.C:
			}
		}
	})
	on[1].awaitPhase(unused, "STANDBY")
	close(stopped)
	group.Wait()
	if w, err := on[0].api.Get(t.Context(), used); err != nil || w.Phase != "RUNNING" {
		t.Errorf("the used workspace is %s: %v", w.Phase, err)
	}
	on[0].remove(used)
	on[0].remove(unused)
}

// leaderOnCluster kills the leader while workspaces start. The next one finishes them.
func (c *cluster) leaderOnCluster(t *testing.T) {
	leader := c.awaitLeader()
	m := c.otherThan(leader)
	s := m.asUser(test{t}, m.token)
	ids := []string{s.createStandby("first"), s.createStandby("second"), s.createStandby("third")}
	for _, id := range ids {
		s.setDesired(id, "RUNNING")
	}
	leader.Kill()
	c.awaitLeader(leader)
	for _, id := range ids {
		s.awaitPhase(id, "RUNNING")
		s.expectNoError(id, "the start")
		s.shell(id, "echo of "+id+" >notes")
	}
	leader.restart()
	again := leader.asUser(test{t}, leader.token)
	for _, id := range ids {
		again.expectShell(id, "cat notes", "of "+id)
		again.remove(id)
	}
}

// kubeletsOnCluster stops the kubelet of a workspace's node and starts it again. The workspace
// works meanwhile, and its Pod stays the same.
func (c *cluster) kubeletsOnCluster(t *testing.T, k *kubetest.Cluster) {
	s := c.onCluster(t)[0]
	id := s.createDesired("kept", "RUNNING")
	s.awaitPhase(id, "RUNNING")
	s.shell(id, "echo kept >notes")
	before, node := podOf(t, k, id)
	k.Stop(kubetest.Kubelet(node))
	s.expectShell(id, "cat notes", "kept")
	s.shell(id, "echo written without a kubelet >notes")
	k.Start(kubetest.Kubelet(node))
	s.expectShell(id, "cat notes", "written without a kubelet")
	if after, _ := podOf(t, k, id); after.UID != before.UID {
		t.Error("the workspace's Pod was replaced")
	}
	s.setDesired(id, "STANDBY") // which takes the kubelet
	s.awaitPhase(id, "STANDBY")
	s.expectNoError(id, "the kubelet")
	s.remove(id)
}

// podOf returns the only Pod of a workspace, and the number of its node.
func podOf(t *testing.T, k *kubetest.Cluster, id string) (pod *corev1.Pod, node int) {
	t.Helper()
	list, err := k.Client.CoreV1().Pods(clusterNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "codehub.dev/workspace=" + id})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("%d Pods of the workspace, %v", len(list.Items), err)
	}
	if _, err := fmt.Sscanf(list.Items[0].Spec.NodeName, "node%d", &node); err != nil {
		t.Fatal(err)
	}
	return &list.Items[0], node
}

// nodesOnCluster cuts the node of a workspace off the network while the workspace writes. All
// servers say so, and the workspace starts again only once the node is back and has ended it.
// Then the workspace's node is lost for good. It starts elsewhere only once an administrator
// has confirmed that. Each time the files are there.
func (c *cluster) nodesOnCluster(t *testing.T, k *kubetest.Cluster) {
	on := c.onCluster(t)
	id := on[0].createDesired("cut off", "RUNNING")
	on[0].awaitPhase(id, "RUNNING")
	on[0].shell(id, "echo kept >notes; setsid sh -c 'while sleep 0.1; do echo beat >>beats; done' >/dev/null 2>&1 </dev/null &")
	written := func() int64 {
		t.Helper()
		info, err := os.Stat(filepath.Join(on[0].homeFolder(id), "beats"))
		if os.IsNotExist(err) {
			return 0 // not yet
		}
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	writesOn := func(when string) {
		t.Helper()
		before := written()
		harness.Eventually(t, "the workspace writes "+when, func() bool { return written() > before })
	}
	writesOn("at first")

	before, node := podOf(t, k, id)
	k.CutNode(node)
	c.awaitUnreachable(t, on, id, before)
	writesOn("although its node is cut off")
	c.awaitRemoval(t, k, on, id, before)
	c.awaitUnreachable(t, on, id, before)
	writesOn("although its Pod is removed")
	last := written()
	k.HealNode(node)
	restarted := func(w api.Workspace) bool {
		list, err := k.Client.CoreV1().Pods(clusterNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: "codehub.dev/workspace=" + id + ",codehub.dev/role=workspace"})
		return err == nil && len(list.Items) == 1 && list.Items[0].UID != before.UID && w.Phase == "RUNNING" && w.Operation == "NONE"
	}
	for _, s := range on {
		s.await(id, "RUNNING in another Pod", restarted)
		s.expectShell(id, "cat notes; sort -u beats", "kept\nbeat")
	}
	if now := written(); now < last {
		t.Errorf("%d bytes are left of %d", now, last)
	}
	on[0].expectNoError(id, "the cut")

	on[1].shell(id, "echo kept again >notes")
	before, node = podOf(t, k, id)
	k.LoseNode(node)
	c.awaitUnreachable(t, on, id, before)
	for _, s := range on {
		if _, err := s.api.ConfirmDeadNode(t.Context(), before.Spec.NodeName); codehub.CodeOf(err) != "unavailable" {
			t.Errorf("a confirmation that is too early: %v", err)
		}
	}
	c.awaitRemoval(t, k, on, id, before)
	if now, _ := podOf(t, k, id); now.UID != before.UID {
		t.Error("the workspace has started elsewhere before the node was confirmed to be dead")
	}
	// Instead of waiting until the node has not responded for long enough.
	patch := fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "lastTransitionTime": %q}]}}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	if _, err := k.Client.CoreV1().Pods(clusterNamespace).Patch(t.Context(), before.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	if done, err := on[1].api.ConfirmDeadNode(t.Context(), before.Spec.NodeName); err != nil || done.Removed == 0 { // a Pod of a network check may count as well
		t.Errorf("the confirmation that the node is dead: %+v, %v", done, err)
	}
	for _, s := range on {
		s.await(id, "RUNNING in another Pod", restarted)
		s.expectShell(id, "cat notes", "kept again")
		harness.Eventually(t, "no node is lost any more", func() bool {
			status, err := s.api.AdminStatus(t.Context())
			return err == nil && len(status.LostNodes) == 0
		})
	}
	if now, _ := podOf(t, k, id); now.Spec.NodeName == before.Spec.NodeName {
		t.Error("the workspace is on the dead node")
	}
	on[0].expectNoError(id, "the loss of the node")
	on[0].remove(id)
}

// awaitRemoval waits until the cluster removes the Pod of a workspace on a node that does not
// respond, requests a start of the workspace from every server, and waits until one waits for the
// node.
func (c *cluster) awaitRemoval(t *testing.T, k *kubetest.Cluster, on []*server, id string, before *corev1.Pod) {
	t.Helper()
	harness.Eventually(t, "the cluster removes the Pod", func() bool {
		p, err := k.Client.CoreV1().Pods(clusterNamespace).Get(t.Context(), before.Name, metav1.GetOptions{})
		return err == nil && p.UID == before.UID && p.DeletionTimestamp != nil
	})
	for _, s := range on {
		if _, err := s.api.Want(t.Context(), id, "RUNNING", true); err != nil {
			t.Errorf("start: %v", err)
		}
	}
	on[0].await(id, "waiting for the node", func(w api.Workspace) bool { return w.Progress != nil && w.Progress.Step == runtime.StepWaitingNode })
}

// awaitUnreachable waits until all servers say that the node of a workspace's Pod does not
// respond.
func (c *cluster) awaitUnreachable(t *testing.T, on []*server, id string, pod *corev1.Pod) {
	t.Helper()
	message := fmt.Sprintf(workspace.MsgNodeLost, pod.Spec.NodeName)
	for _, s := range on {
		s.await(id, "on a node that does not respond", func(w api.Workspace) bool {
			return w.Conditions[string(workspace.ContainerReady)].Message == message
		})
		harness.Eventually(t, "the administrators' page names the node", func() bool {
			status, err := s.api.AdminStatus(t.Context())
			return err == nil && len(status.LostNodes) == 1 && status.LostNodes[0].Name == pod.Spec.NodeName &&
				len(status.LostNodes[0].Workspaces) == 1 && status.LostNodes[0].Workspaces[0].WorkspaceID == id
		})
	}
}

// shell runs a command in a workspace and returns what it prints.
func (s *server) shell(id, command string) string {
	s.Helper()
	x, err := s.api.Exec(s.Context(), id, api.Exec{Shell: command})
	if err != nil {
		s.Errorf("%s: %v", command, err)
		return ""
	}
	var out bytes.Buffer
	if code, err := x.Run(s.Context(), &out, &out, nil); err != nil || code != 0 {
		s.Errorf("%s: exit code %d, %v: %s", command, code, err, &out)
	}
	return strings.TrimSpace(out.String())
}

func (s *server) expectShell(id, command, want string) {
	s.Helper()
	if got := s.shell(id, command); got != want {
		s.Errorf("%s prints %q, want %q", command, got, want)
	}
}

// onCluster returns the servers as the administrator's, for a subtest.
func (c *cluster) onCluster(t *testing.T) []*server {
	t.Helper()
	var on []*server
	for _, m := range c.members {
		on = append(on, m.asUser(test{t}, m.token))
	}
	return on
}

// expectNoError checks that a crash of the server is not counted as a failure
// of the workspace.
func (s *server) expectNoError(id, at string) {
	s.Helper()
	w, err := s.api.Get(s.Context(), id)
	if err != nil {
		s.Fatal(err)
	}
	if w.ErrorCount != 0 || w.ErrorReason != nil {
		s.Errorf("a crash or outage at %s counted as a failure: %d, %s: %s", at, w.ErrorCount, str(w.ErrorReason), str(w.ErrorMessage))
	}
}
