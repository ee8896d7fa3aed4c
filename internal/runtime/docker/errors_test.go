package docker

import (
	"archive/tar"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"codehub/internal/runtime"
	"codehub/internal/runtime/docker/engine"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Every call that needs disk space reports a full disk.
func TestFullDiskIsReported(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	check(t, r.Prepare(t.Context()))
	type home = runtime.ContainerSpec
	create := func(spec home) error {
		return r.CreateVolume(t.Context(), runtime.VolumeSpec{Workspace: spec.Workspace, Storage: spec.Storage, Claim: spec.VolumeClaim, Image: spec.Image}, nil)
	}
	start := func(spec home) error { _, err := r.StartContainer(t.Context(), spec, nil); return err }
	refuses := answer(500, "mkdir /var/lib/docker/x: no space left on device")
	for _, c := range []struct {
		path string
		made bool // the volume exists
		call func(home) error
	}{
		{"/volumes/create", false, create},
		{"/containers/create", false, create},
		{"/containers/create", true, start},
		{"/start", true, start},
	} {
		spec := newHome()
		if c.made {
			check(t, create(spec))
		}
		e.fail(c.path, refuses)
		err := c.call(spec)
		e.fail("", nil)
		if !errors.Is(err, runtime.ErrNoSpace) || errors.Is(err, runtime.ErrUnreachable) {
			t.Errorf("%s: %v", c.path, err)
		}
		if err := c.call(spec); err != nil {
			t.Errorf("%s, with space again: %v", c.path, err)
		}
	}

	for _, how := range []func(http.ResponseWriter, *http.Request){
		refuses,
		func(w http.ResponseWriter, _ *http.Request) { // Docker has begun to respond
			fmt.Fprintln(w, `{"status":"importing"}`)
			fmt.Fprintln(w, `{"error":"write /codehub: no space left on device","errorDetail":{"message":"write /codehub: no space left on device"}}`)
		},
	} {
		e.fail("/images/create", how)
		err := r.helper.ImportImage(t.Context(), "codehub-test-"+engine.RandomHex(8)+":none", engine.RoleHelper, nil, func(*tar.Writer) error { return nil })
		e.fail("", nil)
		if !errors.Is(err, runtime.ErrNoSpace) {
			t.Errorf("import: %v", err)
		}
	}
}

// Docker's messages may have any length; errors are truncated.
func TestErrorIsTruncated(t *testing.T) {
	harness.Verify(t)
	t.Parallel()
	e := newFaultProxy(t)
	r := newRuntime(t, func(c *Config) { c.Host = e.host })
	spec := newHome()
	e.fail("/volumes/create", answer(500, strings.Repeat("unlinkat: directory not empty: ", 50<<10/31)+"no space left on device"))
	err := r.CreateVolume(t.Context(), runtime.VolumeSpec{
		Workspace: spec.Workspace, Storage: spec.Storage, Claim: "home", Image: spec.Image,
	}, nil)
	e.fail("", nil)
	const prefix = 200 // the prefix added by this package
	if !errors.Is(err, runtime.ErrNoSpace) || len(err.Error()) > workspace.MaxMessage+prefix || !strings.HasSuffix(err.Error(), "… (cut)") {
		t.Fatalf("an error of %d bytes", len(fmt.Sprint(err)))
	}
}
