package runtimetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"codehub/internal/runtime"
	"codehub/internal/runtime/agent"
	"codehub/internal/testing/harness"
	"codehub/internal/workspace"
)

// Harness is a runtime under test. Homes, Containers, Jobs and Images bypass it: they simulate
// crashes, manual changes and other programs.
type Harness struct {
	Runtime   runtime.Runtime
	Neighbour runtime.Runtime // another installation on the same Docker
	Down      runtime.Runtime // a runtime that is not responding

	// Remote: containers, homes and jobs are on other machines. Then jobs reach no folder of
	// this one, nothing is known of the disks of homes, neither pulls nor removals are
	// counted, a machine may pull an image which another one has, and what a job prints to its
	// standard error is part of its lines.
	Remote bool

	Storage string // the storage backend under test
	Image   string // an available image

	Homes      Homes
	Containers Containers
	Jobs       Jobs
	Images     Images

	Remains func(*testing.T, workspace.ID) []string // all remaining objects of the workspace
}

// Homes are the homes of the runtime, without it.
type Homes struct {
	Limits bool // they have the limits of their specs
	Grows  bool // the limit of a home grows with the size of its container
	AtOnce bool // a home is removed in one step, so that no entries are counted

	Seed    []File                                // the content of a new one, sorted by path, including "."
	Content func(*testing.T, workspace.ID) []File // the current content, sorted by path
	Take    func(*testing.T, workspace.ID)        // removes one by hand

	HalfSeed   func(*testing.T, runtime.VolumeSpec)   // leaves the state after a crash in CreateVolume
	HalfRemove func(*testing.T, workspace.ID, string) // leaves the state after a crash in RemoveVolume of the home with this claim
	// Use mounts the home read-only in a container that is not codehub's, running
	// or only created, until leave is called. Edit changes the home in such a
	// container; the lines are those of package script.
	Use  func(t *testing.T, id workspace.ID, name string, running bool) (leave func())
	Edit func(t *testing.T, id workspace.ID, lines ...string)

	// PutForeign creates a volume of the home's name by hand, FillForeign writes a file to it.
	PutForeign  func(*testing.T, workspace.ID)
	FillForeign func(t *testing.T, id workspace.ID, path, content string)
	// Aside lists the content of a set-aside home, sorted by path; TakeAside removes it by hand.
	Aside     func(t *testing.T, name string) []File
	TakeAside func(t *testing.T, name string)
}

// Containers are the containers of workspaces, without the runtime.
type Containers struct {
	HalfStart   func(*testing.T, runtime.ContainerSpec) // leaves one that was created but not started
	End         func(*testing.T, workspace.ID)          // it exits
	Take        func(*testing.T, workspace.ID)          // removes it by hand
	Environment func(*testing.T, workspace.ID) (hostname string, env map[string]string)
	// Write writes a file to the home from the running container.
	Write func(t *testing.T, id workspace.ID, up runtime.Upstream, path, content string)
}

// Jobs are storage jobs, without the runtime.
type Jobs struct {
	Half         func(*testing.T, runtime.JobSpec) string  // leaves one that was created but not started; returns its ID
	End          func(t *testing.T, jobID string)          // kills it
	Put          func(*testing.T, runtime.JobSpec, string) // writes a file that it may wait for; nil: to the archive's directory
	ReadOnlyCode int                                       // the exit code of one that changes a read-only home
}

// Images are images and registries, without the runtime.
type Images struct {
	Missing   string                         // one that does not exist
	Pullable  func(*testing.T) string        // a new image like Harness.Image that has to be pulled
	Republish func(t *testing.T, ref string) // the registry gets another such image under the name of a pullable one
	Take      func(t *testing.T, id string)  // removes one from the machine by hand
}

// bound ends a test that hangs, unless the harness has a bound of its own; no test waits for
// time to pass. A busy machine may need minutes for one.
const bound = 5 * time.Minute

// Conformance tests a runtime against the contract of runtime.Runtime.
func Conformance(t *testing.T, newHarness func(*testing.T) Harness) {
	conformance(t, newHarness, volumeTests(), containerTests(), installationTests(), backendTests(), jobTests(), backupTests(), restoreTests(), removalTests(), imageTests(), busyTests(), asideTests(), markTests())
}

// HomeConformance tests what of the contract depends on how homes are stored. make test has
// their creation, restore, removal and setting aside.
func HomeConformance(t *testing.T, newHarness func(*testing.T) Harness) {
	groups := []map[string]func(*suite){volumeTests(), restoreTests(), removalTests(), asideTests()}
	if harness.Verifying() {
		groups = append(groups, jobTests(), backupTests(), busyTests())
	}
	conformance(t, newHarness, groups...)
}

func conformance(t *testing.T, newHarness func(*testing.T) Harness, groups ...map[string]func(*suite)) {
	h := newHarness(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*bound)
	t.Cleanup(cancel)
	if err := prepare(ctx, h.Runtime); err != nil {
		t.Fatalf("Prepare: %v", err)
	}
	if err := prepare(ctx, h.Neighbour); err != nil {
		t.Fatalf("Prepare of another installation: %v", err)
	}
	within := bound
	if h.Remote {
		within *= 3
	}
	for _, group := range groups {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(context.Background(), within)
				t.Cleanup(cancel)
				test(&suite{T: t, Harness: h, ctx: ctx, id: workspace.ID(uuid.NewString())})
			})
		}
	}
}

// prepare calls Prepare. The network of the suite's containers may be open.
func prepare(ctx context.Context, r runtime.Runtime) error {
	err := r.Prepare(ctx)
	var open *runtime.IsolationError
	if errors.As(err, &open) {
		return nil
	}
	return err
}

// suite is one subtest with its own workspace.
type suite struct {
	*testing.T
	Harness
	ctx    context.Context
	id     workspace.ID
	object string // the directory of the workspace's archive
}

// hello asks an agent who it is, until it listens.
func (s *suite) hello(addr, secret string) (agent.Hello, error) {
	client := agent.Client{Addr: addr, Secret: secret}
	for {
		hello, err := client.Hello(s.ctx)
		if !errors.Is(err, agent.ErrUnreachable) || s.ctx.Err() != nil {
			return hello, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (s *suite) volumeSpec() runtime.VolumeSpec {
	return runtime.VolumeSpec{Workspace: s.id, Storage: s.Storage, Claim: "home-1", Image: s.Image}
}

func (s *suite) containerSpec() runtime.ContainerSpec {
	return runtime.ContainerSpec{
		Workspace: s.id, UID: workspace.ArchivedUID, Claim: "start-1", Image: s.Image, Storage: s.Storage,
		VolumeClaim: "home-1", Secret: "5ec7e7" + uuid.NewString(), Choice: runtime.ImageChoice{Generation: 1},
		Size: workspace.Size{Name: workspace.DefaultSize},
	}
}

func (s *suite) ok(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *suite) is(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Fatalf("%s: %v, want %v", what, err, want)
	}
}

// create creates the home; everything is removed at the end of the test.
func (s *suite) create() {
	s.Helper()
	s.tidy()
	s.ok("CreateVolume", s.Runtime.CreateVolume(s.ctx, s.volumeSpec(), nil))
}

func (s *suite) tidy() {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if c, ok := s.find(ctx); ok {
			if err := s.Runtime.RemoveContainer(ctx, c.ID, 0); err != nil {
				s.Errorf("clean up: %v", err)
			}
		}
		jobs, err := s.Runtime.Jobs(ctx)
		if err != nil {
			s.Errorf("clean up: %v", err)
		}
		for _, j := range jobs {
			if j.Workspace != s.id {
				continue
			}
			if err := s.Runtime.RemoveJob(ctx, j.ID); err != nil {
				s.Errorf("clean up: %v", err)
			}
		}
		list, err := s.Runtime.Volumes(ctx)
		if err != nil {
			s.Errorf("clean up: %v", err)
		}
		for _, v := range list {
			if v.Workspace != s.id || v.Foreign {
				continue
			}
			if err := s.Runtime.RemoveVolume(ctx, s.id, v.Claim, nil); err != nil {
				s.Errorf("clean up: %v", err)
			}
		}
	})
}

func (s *suite) start() runtime.Container {
	s.Helper()
	c, err := s.Runtime.StartContainer(s.ctx, s.containerSpec(), nil)
	s.ok("StartContainer", err)
	return c
}

// restart removes the container and starts another.
func (s *suite) restart(c runtime.Container) runtime.Container {
	s.Helper()
	s.ok("RemoveContainer", s.Runtime.RemoveContainer(s.ctx, c.ID, time.Second))
	spec := s.containerSpec()
	spec.Claim = "start-2"
	c, err := s.Runtime.StartContainer(s.ctx, spec, nil)
	s.ok("StartContainer", err)
	return c
}

func (s *suite) find(ctx context.Context) (runtime.Container, bool) {
	s.Helper()
	list, err := s.Runtime.Containers(ctx)
	if err != nil {
		s.Errorf("Containers: %v", err)
	}
	for _, c := range list {
		if c.Workspace == s.id {
			return c, true
		}
	}
	return runtime.Container{}, false
}

// container returns the workspace's listed container.
func (s *suite) container() runtime.Container {
	s.Helper()
	c, ok := s.find(s.ctx)
	if !ok {
		s.Fatal("the container is not listed")
	}
	return c
}

func (s *suite) noContainer() {
	s.Helper()
	if c, ok := s.find(s.ctx); ok {
		s.Fatalf("a container is listed: %+v", c)
	}
}

func (s *suite) volume() (runtime.Volume, bool) {
	s.Helper()
	list, err := s.Runtime.Volumes(s.ctx)
	s.ok("Volumes", err)
	i := slices.IndexFunc(list, func(v runtime.Volume) bool { return v.Workspace == s.id })
	if i < 0 {
		return runtime.Volume{}, false
	}
	return list[i], true
}

// listed checks the listed home. Whether it is held, and its disk, are the runtime's own.
func (s *suite) listed(want runtime.Volume) {
	s.Helper()
	got, ok := s.volume()
	if !ok {
		s.Fatal("the volume is not listed")
	}
	want.Workspace, want.Storage = s.id, s.Storage
	want.Held, want.Limit, want.OwnDisk = got.Held, got.Limit, got.OwnDisk // see wantHeld
	if diff := cmp.Diff(want, got); diff != "" {
		s.Fatalf("volume as listed (-want +got):\n%s", diff)
	}
}

// wantRemoving checks that the home is listed as being removed.
func (s *suite) wantRemoving(claim string) {
	s.Helper()
	s.listed(runtime.Volume{Claim: claim, Removing: true})
}

// wantVolume checks the listed home.
func (s *suite) wantVolume(claim string, seeded bool) {
	s.Helper()
	s.listed(runtime.Volume{Claim: claim, Seeded: seeded})
}

// settle settles the home.
func (s *suite) settle() {
	s.Helper()
	s.ok("SettleVolume", s.Runtime.SettleVolume(s.ctx, s.id, "home-1"))
}

// removeHome removes the home.
func (s *suite) removeHome() {
	s.Helper()
	s.ok("RemoveVolume", s.Runtime.RemoveVolume(s.ctx, s.id, "home-1", nil))
}

// wantHeld checks that the settled home is listed as held.
func (s *suite) wantHeld() {
	s.Helper()
	if v, ok := s.volume(); !ok || !v.Held {
		s.Fatalf("volume after settling: %+v", v)
	}
}

func (s *suite) noVolume() {
	s.Helper()
	if v, ok := s.volume(); ok {
		s.Fatalf("a volume is listed: %+v", v)
	}
}

func (s *suite) wantHome(want []File) {
	s.Helper()
	if diff := cmp.Diff(want, s.Homes.Content(s.T, s.id)); diff != "" {
		s.Fatalf("home (-want +got):\n%s", diff)
	}
}

// seedWith is the seed with one more file.
func (s *suite) seedWith(path, content string) []File {
	out := slices.Clone(s.Homes.Seed)
	out = append(out, File{Path: path, Mode: 0o644, UID: 1000, GID: 1000, Content: content})
	slices.SortFunc(out, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// write waits for the IDE and writes a file from the container.
func (s *suite) write(path, content string) {
	s.Helper()
	s.answers(s.container())
	up, err := s.Runtime.Upstream(s.ctx, s.id)
	s.ok("Upstream", err)
	s.Containers.Write(s.T, s.id, up, path, content)
}

// answers waits until the container's IDE responds.
func (s *suite) answers(c runtime.Container) {
	s.Helper()
	for {
		err := s.Runtime.Probe(s.ctx, c)
		if err == nil {
			return
		}
		if s.ctx.Err() != nil {
			s.Fatalf("Probe: %v", err)
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (s *suite) nothingRemains() {
	s.Helper()
	if left := s.Remains(s.T, s.id); len(left) > 0 {
		s.Fatalf("left behind: %q", left)
	}
}
