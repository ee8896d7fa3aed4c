package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/runtime"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// attacher is a CSI driver whose volumes have to be attached to nodes. The cluster's own
// controller asks for that by VolumeAttachments, and the test answers as the driver's
// external-attacher does. The driver has no plugin on nodes, so that nothing mounts its volumes.
type attacher struct {
	*cluster
	t    *testing.T
	name string // of the driver and of its storage class
}

func (c *cluster) newAttacher(t *testing.T) attacher {
	t.Helper()
	a := attacher{c, t, "attach-" + uuid.NewString()[:8] + ".example.org"}
	required := true
	a.must(c.Client.StorageV1().CSIDrivers().Create(t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: a.name}, Spec: storagev1.CSIDriverSpec{AttachRequired: &required},
	}, metav1.CreateOptions{}))
	a.must(c.Client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: a.name}, Provisioner: a.name,
	}, metav1.CreateOptions{}))
	return a
}

func (a attacher) must(_ any, err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// provision makes the volume of a claim, which need not exist yet.
func (a attacher) provision(claim string) (volume string) {
	a.t.Helper()
	volume = "csi-" + claim
	a.must(a.Client.CoreV1().PersistentVolumes().Create(a.t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef: &corev1.ObjectReference{Namespace: namespace, Name: claim}, StorageClassName: a.name, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: a.name, VolumeHandle: volume}},
		},
	}, metav1.CreateOptions{}))
	return volume
}

// attachment waits until the cluster asks for a volume.
func (a attacher) attachment(volume string) (found storagev1.VolumeAttachment) {
	a.t.Helper()
	harness.Eventually(a.t, "the cluster asks for the volume", func() bool {
		list := a.attachments(volume)
		if len(list) > 0 {
			found = list[0]
		}
		return len(list) > 0
	})
	return found
}

func (a attacher) awaitDetached(volume string) {
	a.t.Helper()
	harness.Eventually(a.t, "the volume is detached", func() bool { return len(a.attachments(volume)) == 0 })
}

func (a attacher) attachments(volume string) (found []storagev1.VolumeAttachment) {
	a.t.Helper()
	list, err := a.Client.StorageV1().VolumeAttachments().List(a.t.Context(), metav1.ListOptions{})
	if err != nil {
		a.t.Fatal(err)
	}
	for _, v := range list.Items {
		if v.Spec.Attacher == a.name && *v.Spec.Source.PersistentVolumeName == volume {
			found = append(found, v)
		}
	}
	return found
}

// answer answers a request of the cluster's. An empty message says that the volume is attached.
func (a attacher) answer(v storagev1.VolumeAttachment, message string) {
	a.t.Helper()
	status := map[string]any{"attached": message == "", "attachError": nil}
	if message != "" {
		status["attachError"] = map[string]any{"message": message, "time": time.Now().UTC().Format(time.RFC3339)}
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		a.t.Fatal(err)
	}
	a.must(a.Client.StorageV1().VolumeAttachments().Patch(a.t.Context(), v.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"))
}

// awaitEvent waits for an event with this reason and these words for a Pod of a workspace.
func (a attacher) awaitEvent(id workspace.ID, reason, words string) {
	a.t.Helper()
	harness.Eventually(a.t, "the event "+reason+" "+words, func() bool {
		list, err := a.Client.CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			a.t.Fatal(err)
		}
		for _, e := range list.Items {
			if strings.Contains(e.InvolvedObject.Name, string(id)) && strings.Contains(e.Message, words) {
				return true
			}
		}
		return false
	})
}

// waitsForVolume checks that a call was refused because of the volume, with the cluster's words.
func waitsForVolume(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	var busy *runtime.BusyError
	if !errors.As(err, &busy) || busy.Step != runtime.StepWaitingVolume {
		t.Errorf("%s: %#v, want the step %s", what, err, runtime.StepWaitingVolume)
		return
	}
	for _, text := range words {
		if !strings.Contains(busy.Reason, text) {
			t.Errorf("%s: %q does not contain %q", what, busy.Reason, text)
		}
	}
}

// A call that waits for a job keeps waiting while the node waits for the volume, and sees the job
// start. One that waits for a task ends.
func TestJobWaitsForVolume(t *testing.T) {
	t.Parallel()
	api, r := newStub(t)
	api.expired = true // each wait for a change ends soon
	id, home := api.home(r, nil)
	ago := metav1.NewTime(time.Now().Add(-time.Hour))
	placed := func(p *corev1.Pod) *corev1.Pod {
		p.Namespace, p.UID, p.Spec.NodeName, p.Spec.SchedulingGates = namespace, types.UID(uuid.NewString()), "node1", nil
		p.Status.Phase = corev1.PodPending
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: ago}}
		api.put("pods", p)
		api.put("events", &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name}, InvolvedObject: corev1.ObjectReference{UID: p.UID}, Type: corev1.EventTypeWarning,
			Reason: "FailedAttachVolume", Message: `Multi-Attach error for volume "pv-1"`, LastTimestamp: metav1.Now(),
		})
		p, err := r.pods().Get(t.Context(), p.Name, metav1.GetOptions{})
		check(t, err)
		return p
	}
	task := r.pod(onHome{name: checkName(id), role: roleTask, id: id, home: home, command: []string{"true"}})
	_, err := r.awaitHelper(t.Context(), placed(task), runtime.StepChecking, nil)
	waitsForVolume(t, "a task", err, "Multi-Attach")

	job := placed(r.jobPod(runtime.JobSpec{Kind: runtime.JobArchive, Workspace: id, Claim: "claim-1", VolumeClaim: "home-1"}, home))
	waits, begins := 0, false
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	now, err := r.awaitHelper(ctx, job, runtime.StepPacking, func(p runtime.Progress) {
		if waits == 2 && p.Step == runtime.StepPacking {
			begins = true
			return
		}
		if p.Step != runtime.StepWaitingVolume || !p.Uncounted || !strings.Contains(p.Detail, "Multi-Attach") {
			t.Errorf("progress %+v", p)
		}
		if waits++; waits == 2 {
			job.Status.Phase = corev1.PodRunning
			job.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: containerHelper, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
			api.put("pods", job)
		}
	})
	if err != nil || now.Status.Phase != corev1.PodRunning || waits != 2 || !begins {
		t.Errorf("a job: %+v, %v, after %d reports of the wait; packing was reported: %v", now.Status, err, waits, begins)
	}

	// One whose Pod is removed meanwhile is repeated.
	spec := runtime.JobSpec{Kind: runtime.JobRestore, Workspace: id, Claim: "claim-2", VolumeClaim: "home-1"}
	removed := placed(r.jobPod(spec, home))
	_, err = r.instruct(ctx, removed, spec, func(runtime.Progress) { api.finish("pods", removed.Name) })
	if !errors.Is(err, runtime.ErrBusy) || !strings.Contains(err.Error(), "was removed") {
		t.Errorf("a job whose Pod is removed: %v", err)
	}
}

// testNotAttached has a home whose volume the driver does not attach. The call ends with the
// driver's own words, and leaves nothing that keeps the home from being removed. Once the volume
// is attached, the next reason is shown: here, that no node has the driver.
func testNotAttached(t *testing.T, c *cluster) {
	a, r := c.newAttacher(t), c.runtime(t)
	r.cfg.StorageClass = a.name
	home := runtime.VolumeSpec{Workspace: workspace.ID(uuid.NewString()), Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
	volume := a.provision(home.Workspace.VolumeName())
	made := make(chan error, 1)
	go func() { made <- r.CreateVolume(t.Context(), home, nil) }()
	request := a.attachment(volume)
	a.answer(request, "rpc error: code = ResourceExhausted desc = node has reached its limit of 25 volumes")
	waitsForVolume(t, "CreateVolume", <-made, "FailedAttachVolume", "AttachVolume.Attach failed for volume \""+volume+"\"", "limit of 25 volumes")

	a.awaitDetached(volume)
	go func() { made <- r.CreateVolume(t.Context(), home, nil) }() // as the server repeats it
	again := a.attachment(volume)
	a.answer(again, "")
	a.awaitEvent(home.Workspace, "SuccessfulAttachVolume", volume)
	waitsForVolume(t, "CreateVolume once it is attached", <-made, "FailedMount", a.name)

	if err := r.RemoveVolume(t.Context(), home.Workspace, home.Claim, nil); err != nil {
		t.Errorf("the home cannot be removed: %v", err)
	}
}

// Which event says why a Pod does not start.
func TestLastFailure(t *testing.T) {
	t.Parallel()
	event := func(second int, reason string, volume ...string) corev1.Event {
		kind := corev1.EventTypeWarning
		if strings.HasPrefix(reason, "Successful") {
			kind = corev1.EventTypeNormal
		}
		message := ""
		for _, name := range volume {
			message = fmt.Sprintf("Multi-Attach error for volume %q Volume is already used", name)
		}
		return corev1.Event{Type: kind, Reason: reason, Message: message, LastTimestamp: metav1.Unix(int64(second), 0)}
	}
	for name, one := range map[string]struct {
		events []corev1.Event
		want   string
	}{
		"none":                                 {nil, ""},
		"only good ones":                       {[]corev1.Event{event(1, "SuccessfulAttachVolume")}, ""},
		"the last":                             {[]corev1.Event{event(2, "FailedMount"), event(1, "FailedCreatePodSandBox")}, "FailedMount"},
		"a mount that waits for the volume":    {[]corev1.Event{event(1, "FailedAttachVolume"), event(120, "FailedMount")}, "FailedAttachVolume"},
		"a mount failure after the attachment": {[]corev1.Event{event(1, "FailedAttachVolume"), event(5, "SuccessfulAttachVolume"), event(7, "FailedMount")}, "FailedMount"},
		"another volume is attached":           {[]corev1.Event{event(1, "FailedAttachVolume", "a"), event(5, "SuccessfulAttachVolume", "b"), event(130, "FailedMount")}, "FailedAttachVolume"},
		"no room before it had a node":         {[]corev1.Event{event(1, "FailedScheduling")}, ""},
		"attached elsewhere again":             {[]corev1.Event{event(5, "SuccessfulAttachVolume"), event(9, "FailedAttachVolume"), event(130, "FailedMount")}, "FailedAttachVolume"},
	} {
		got := ""
		if e := lastFailure(one.events); e != nil {
			got = e.Reason
		}
		if got != one.want {
			t.Errorf("%s: %q, want %q", name, got, one.want)
		}
	}
}
