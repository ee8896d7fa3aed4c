package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"codehub/internal/archive"
	"codehub/internal/runtime"
	"codehub/internal/storage/storagejob"
	"codehub/internal/storage/store"
	"codehub/internal/workspace"
	"codehub/internal/workspace/imageref"
	"codehub/internal/workspace/lifecycle"
)

// The kind of an error of a storage job or the bucket determines what happens to
// the operation.
func TestFailureReasons(t *testing.T) {
	t.Parallel()
	job := func(kind storagejob.ErrorKind) error {
		return fmt.Errorf("x: %w", jobFailed(&storagejob.Error{Kind: kind, Message: "its words"}))
	}
	const outage workspace.ErrorReason = "outage"
	reason := func(f *lifecycle.Failure) workspace.ErrorReason {
		if f.Outage && f.Reason == "" {
			return outage
		}
		return f.Reason
	}
	for _, c := range []struct {
		err              error
		packing, restore workspace.ErrorReason
	}{
		{job(storagejob.Corrupted), workspace.ErrActionFailed, workspace.ErrArchiveCorrupted},
		{job(storagejob.NotFound), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{job(storagejob.Changed), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{job(storagejob.Unrestorable), workspace.ErrUnrestorable, workspace.ErrUnrestorable},
		{job(storagejob.Unavailable), outage, outage},
		{job(storagejob.Stopped), outage, outage},
		{job(storagejob.DiskFull), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{job(storagejob.SharedDiskFull), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{job(storagejob.Failed), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{job("something new"), workspace.ErrActionFailed, workspace.ErrActionFailed},
		{storagejob.ErrNoOrders, workspace.ErrActionFailed, workspace.ErrActionFailed},
		{fmt.Errorf("x: %w", runtime.ErrUnreachable), outage, outage},
		{fmt.Errorf("x: %w", store.ErrUnavailable), outage, outage},
		{fmt.Errorf("x: %w", runtime.ErrNoSpace), outage, outage},
		{fmt.Errorf("x: %w", syscall.ENOSPC), outage, outage},
		{&runtime.PullError{Image: "i", Message: "no"}, workspace.ErrImagePullFailed, workspace.ErrImagePullFailed},
		{&imageref.NotAllowed{Image: "i"}, workspace.ErrImageNotAllowed, workspace.ErrImageNotAllowed},
		{&runtime.SlowPullError{Image: "i", Rate: 1, Least: 2}, workspace.ErrImagePullTooSlow, workspace.ErrImagePullTooSlow},
	} {
		if f := failure(c.err); reason(f) != c.restore || f.Message == "" {
			t.Errorf("%v: %+v, want %s", c.err, f, c.restore)
		}
		if f := failure(hideDamage(c.err)); reason(f) != c.packing || f.Message != c.err.Error() {
			t.Errorf("packing, %v: %+v, want %s", c.err, f, c.packing)
		}
	}
	if text := job(storagejob.Stopped).Error(); strings.Contains(text, "Docker") {
		t.Errorf("a stopped job on any runtime: %q", text)
	}
	if failure(nil) != nil {
		t.Error("a nil error returned a failure")
	}
}

func TestJobOutputIsTruncated(t *testing.T) {
	t.Parallel()
	long := jobFailed(&storagejob.Error{Kind: storagejob.Failed, Message: strings.Repeat("é", 5000)})
	if s := long.Error(); len(s) > workspace.MaxMessage || !strings.HasPrefix(s, "éé") || !strings.HasSuffix(s, "(cut)") {
		t.Errorf("%d bytes", len(s))
	}
	if f := failure(errors.New(strings.Repeat("é", 25<<10))); len(f.Message) > workspace.MaxMessage || !strings.HasSuffix(f.Message, "… (cut)") {
		t.Errorf("a message of %d bytes", len(f.Message))
	}
}

// The message names the disk and its free space.
func TestTooFull(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	for _, c := range []struct {
		disks []runtime.Disk
		says  string
	}{
		{nil, ""},
		{[]runtime.Disk{{Name: "homes", Free: 50 * gib, Total: 100 * gib}}, ""},
		{[]runtime.Disk{{Name: "homes", Free: 5 * gib, Total: 100 * gib}}, ""},
		{[]runtime.Disk{{Name: "homes", Free: 5*gib - 1, Total: 100 * gib}}, "homes: 5.0 %"},
		{[]runtime.Disk{{Name: "a", Free: 9, Total: 10}, {Name: "b", Free: 0, Total: 100 * gib}}, "b: 0.0 %"},
		{[]runtime.Disk{{Name: "unknown"}}, ""},
		{[]runtime.Disk{{Name: "homes", Free: 50, Total: 100, FreeInodes: 5, Inodes: 100}}, ""},
		{[]runtime.Disk{{Name: "homes", Free: 50, Total: 100, FreeInodes: 4, Inodes: 100}}, "homes: 4.0 % of the disk's inodes"},
	} {
		if got := tooFull(c.disks, 0.05); !strings.HasPrefix(got, c.says) || c.says == "" && got != "" {
			t.Errorf("%v: %q, want %q", c.disks, got, c.says)
		}
	}
}

// The response to a request for an archive that does not exist shows whether the
// bucket is available.
func TestProbeBucket(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err error
		up  bool
	}{
		{fmt.Errorf("x: %w", store.ErrNotFound), true},
		{fmt.Errorf("x: %w", archive.ErrCorrupted), true},
		{nil, true},
		{fmt.Errorf("x: %w", store.ErrUnavailable), false},
		{errors.New("who knows"), false},
		{context.DeadlineExceeded, false},
	} {
		tm := &term{Controller: New(Config{Archives: metaOnly{err: c.err}})}
		if err := tm.probeBucket(t.Context(), "k"); (err == nil) != c.up {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}

// metaOnly is a bucket that supports only Meta.
type metaOnly struct {
	Archives
	err error
}

func (m metaOnly) Meta(context.Context, string) (*archive.Meta, error) { return &archive.Meta{}, m.err }
