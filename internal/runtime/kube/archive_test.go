package kube

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/bucket"
	"codehub/internal/storage/storagejob"
	"codehub/internal/testing/harness"
	"codehub/internal/testing/harness/fixture"
	"codehub/internal/testing/s3test"
	"codehub/internal/workspace"
)

// testArchives archives a home by a real storage job, which has thousands of pre-signed URLs
// and no other way to the bucket, and restores it into another one.
func testArchives(t *testing.T, c *cluster) {
	h := direct{c: c, r: c.runtime(t)}
	server := s3test.Start(t, "bucket")
	remote := &s3test.Server{Endpoint: "http://" + c.Forward(strings.TrimPrefix(server.Endpoint, "http://"))}
	b, err := bucket.New(bucket.Config{Store: fixture.OpenS3(t, remote, "bucket/prefix"), Installation: h.r.cfg.Installation, Version: "test"})
	check(t, err)
	check(t, b.Check(t.Context(), false))
	row := workspace.Workspace{ID: workspace.ID(uuid.NewString()), Name: "demo", OpID: uuid.NewString()}
	home := runtime.VolumeSpec{Workspace: row.ID, Storage: workspace.StorageKubernetes, Claim: "home-1", Image: harness.TestImage()}
	check(t, h.r.CreateVolume(t.Context(), home, nil))
	h.edit(t, row.ID, "write notes hello", "chmod notes 640")
	want := h.home(t, row.ID)

	spec := runtime.JobSpec{Workspace: row.ID, Claim: row.OpID, Kind: runtime.JobArchive, Storage: home.Storage, VolumeClaim: home.Claim, Key: b.Key(row.ID, row.OpID)}
	check(t, b.ArchiveJob(t.Context(), row, "ann", &spec))
	if len(spec.Input) < 1<<20 {
		t.Fatalf("the instructions have %d bytes, so the test shows nothing about long ones", len(spec.Input))
	}
	packed := runJob(t, h.r, spec, c.makeRoom(t, h.r, jobName(spec.Kind, row.ID)))
	h.r.cfg.Nodes = nil
	meta, err := b.ReadBack(t.Context(), spec.Key, packed, nil)
	check(t, err)
	check(t, h.r.RemoveVolume(t.Context(), row.ID, home.Claim, nil))

	row.OpID, row.ArchiveKey, home.Claim = uuid.NewString(), spec.Key, "home-2"
	check(t, h.r.CreateEmptyVolume(t.Context(), home))
	spec = runtime.JobSpec{Workspace: row.ID, Claim: row.OpID, Kind: runtime.JobRestore, Storage: home.Storage, VolumeClaim: home.Claim, Key: row.ArchiveKey}
	check(t, b.RestoreJob(t.Context(), row, meta, &spec))
	runJob(t, h.r, spec, nil)
	if diff := cmp.Diff(want, h.home(t, row.ID)); diff != "" {
		t.Errorf("the restored home (-want +got):\n%s", diff)
	}
	if err := h.r.MarkRestored(t.Context(), row.ID, home.Claim, row.ArchiveKey); err != nil {
		t.Error(err)
	}
}

// makeRoom gives r Pods that fit on no node. It returns a function that makes room on all nodes once a
// Pod has been reported to wait for that, and checks that the Pod which then runs is the one that waited.
func (c *cluster) makeRoom(t *testing.T, r *Runtime, pod string) func(runtime.Progress) {
	label := "codehub.test/" + uuid.NewString()
	r.cfg.Nodes = map[string]string{label: "yes"}
	var waited types.UID
	uid := func() types.UID {
		p, err := r.pods().Get(t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return ""
		}
		return p.UID
	}
	return func(p runtime.Progress) {
		switch {
		case p.Step == runtime.StepWaitingRoom && waited == "":
			waited = uid()
			if !strings.Contains(p.Detail, "affinity/selector") {
				t.Errorf("the Pod waits: %s", p.Detail)
			}
			nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			for _, n := range nodes.Items {
				patch := []byte(`{"metadata": {"labels": {"` + label + `": "yes"}}}`)
				if _, err := c.Client.CoreV1().Nodes().Patch(t.Context(), n.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Error(err)
				}
			}
		case p.Step == runtime.StepPacking && (waited == "" || uid() != waited):
			t.Errorf("the Pod that runs is not the one that waited")
		}
	}
}

// runJob runs a storage job to its end and returns its result.
func runJob(t *testing.T, r *Runtime, spec runtime.JobSpec, progress func(runtime.Progress)) archive.Stats {
	t.Helper()
	job, err := r.StartJob(t.Context(), spec, progress)
	check(t, err)
	var last storagejob.Event
	exit, err := r.FollowJob(t.Context(), job.ID, func(line []byte) {
		if err := json.Unmarshal(line, &last); err != nil {
			t.Errorf("the job printed %q", line)
		}
	})
	if err != nil || exit != 0 || last.Result == nil || last.Result.Error != nil {
		t.Fatalf("the job ended with %d, %v and %+v", exit, err, last.Result)
	}
	return last.Result.Stats
}
