package job

import (
	"errors"
	"testing"

	"codehub/internal/runtime"
)

// A kernel without weights for reads and writes refuses a container that has one.
func TestRefusedWeightIsLeftOut(t *testing.T) {
	t.Parallel()
	var j Jobs
	if j.weightRefused(nil) || j.weightRefused(errors.New("no such image")) || j.limits(runtime.JobBackup).BlockWeight == 0 {
		t.Fatal("the weight is left out without a cause")
	}
	refused := errors.New(`OCI runtime create failed: open /sys/fs/cgroup/docker/1/io.weight: no such file or directory`)
	if !j.weightRefused(refused) || j.limits(runtime.JobBackup).BlockWeight != 0 {
		t.Fatalf("limits = %+v", j.limits(runtime.JobBackup))
	}
	if j.weightRefused(refused) {
		t.Fatal("the job is tried again without an end")
	}
}
