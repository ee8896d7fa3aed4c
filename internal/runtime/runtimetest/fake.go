// Package runtimetest has an in-memory runtime with faults, and the
// conformance suite that it and the real runtimes pass.
package runtimetest

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	"codehub/internal/runtime"
	"codehub/internal/workspace"
)

// DefaultImage is an image that every Fake has; its HomeDir holds DefaultHome.
const DefaultImage = "codehub/fake:latest"

// File is one entry of a home, by its path relative to it; "." is the home itself.
type File struct {
	Path    string
	Mode    fs.FileMode
	UID     int
	GID     int
	Content string
}

// DefaultHome is what DefaultImage holds at HomeDir.
func DefaultHome() []File {
	return []File{
		{Path: ".", Mode: fs.ModeDir | 0o750, UID: 1000, GID: 1000},
		{Path: ".config", Mode: fs.ModeDir | 0o700, UID: 1000, GID: 1000},
		{Path: ".config/settings.json", Mode: 0o600, UID: 1000, GID: 1000, Content: "{}"},
		{Path: ".profile", Mode: 0o644, UID: 1000, GID: 1000, Content: "umask 022\n"},
		{Path: "project", Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
	}
}

// Before is asked before a call of an operation, and before a step of one that
// a crash may cut off. Its error ends the operation there and is returned as it
// is; it may also wait, to make a step slow, or change the world meanwhile.
//
// The operations are the names of runtime.Runtime's methods. The steps:
//
//	CreateVolume/pull, StartContainer/pull   the image is missing
//	CreateVolume/slow      half of the home is copied, and that was reported
//	CreateVolume/seed      the volume is made, half of the home copied
//	CreateVolume/done      the seeding has finished, the call has not returned
//	StartContainer/start   the container is made, not started
//	StartContainer/done    the container runs, the call has not returned
//	RemoveContainer/remove the container has ended and is still there
//	StartJob/start         the job is made, not started
//	StartJob/done          the job runs, the call has not returned
//	MarkRestored/done      the home is marked, the call has not returned
//	RemoveVolume/begun     nothing says any more that the home is complete
//	RemoveVolume/half      half of the home is removed
//	RemoveVolume/done      the volume is gone, the call has not returned
//	SetAside/copied        what is in the way is copied, its name is not free
//	SetAside/done          the name is free, the call has not returned
//	SetMark/done           the mark is stored, the call has not returned
//
// id is empty for what concerns no single workspace.
type Before func(ctx context.Context, op string, id workspace.ID) error

// Fake is a runtime.Runtime in memory. It has no clock. It is safe for
// concurrent use, and every fault can be set at any time.
type Fake struct {
	installation string
	w            *world

	mu         sync.Mutex
	before     Before
	down       bool
	prepareErr error
	addr       func(workspace.ID) string
	job        JobFunc
	disks      []runtime.Disk
	calls      map[string]int
}

var _ runtime.Runtime = (*Fake)(nil)

// world is the backend that the installations on it share.
type world struct {
	mu           sync.Mutex
	changed      chan struct{} // closed and replaced at every change
	serial       int
	images       map[string]*fakeImage
	containers   map[workspace.ID]*fakeContainer
	volumes      map[workspace.ID]*fakeVolume
	jobs         map[jobName]*fakeJob
	asides       []fakeAside
	marks        map[string]map[string]workspace.Mark // by installation and id
	exitOnStart  map[workspace.ID]bool
	neverHealthy map[workspace.ID]bool
	probesWanted map[workspace.ID]int
	users        map[workspace.ID][]string // foreign containers that have the home mounted
	noAddress    string                    // why no container can be started; empty: there are addresses
	scratch      string                    // homes as folders; empty: none was needed yet
}

type fakeImage struct {
	home   []File
	local  bool
	size   int64
	refuse string        // why it cannot be pulled
	hang   chan struct{} // a pull waits for it
}

type fakeContainer struct {
	runtime.Container
	installation string
	secret       string
	log          []string
	probes       int
}

type fakeVolume struct {
	runtime.Volume
	installation string // empty: made by hand
	files        map[string]File
	folder       string // the files as a folder, for archive jobs and fingerprints; empty: changed since, or none
	live         bool   // settled
	proof        string // id of the job that Marker is by; empty: the seeding
	goes         bool   // its removal has begun
}

// NewFake returns a runtime on a backend of its own.
func NewFake() *Fake {
	w := &world{
		changed:      make(chan struct{}),
		images:       map[string]*fakeImage{},
		containers:   map[workspace.ID]*fakeContainer{},
		volumes:      map[workspace.ID]*fakeVolume{},
		jobs:         map[jobName]*fakeJob{},
		marks:        map[string]map[string]workspace.Mark{},
		exitOnStart:  map[workspace.ID]bool{},
		neverHealthy: map[workspace.ID]bool{},
		probesWanted: map[workspace.ID]int{},
		users:        map[workspace.ID][]string{},
	}
	f := &Fake{installation: "installation-1", w: w, calls: map[string]int{}}
	f.AddImage(DefaultImage, DefaultHome())
	return f
}

// Close removes the folders that the fake has made. Jobs must have ended.
func (f *Fake) Close() error {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	if f.w.scratch == "" {
		return nil
	}
	return os.RemoveAll(f.w.scratch)
}

// Neighbour returns another installation's runtime on the same backend.
func (f *Fake) Neighbour() *Fake {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	f.w.serial++
	return &Fake{installation: fmt.Sprintf("installation-n%d", f.w.serial), w: f.w, calls: map[string]int{}}
}

// enter is how every call begins.
func (f *Fake) enter(ctx context.Context, op string, id workspace.ID) error {
	f.mu.Lock()
	f.calls[op]++
	f.mu.Unlock()
	return f.step(ctx, op, id)
}

func (f *Fake) step(ctx context.Context, op string, id workspace.ID) error {
	f.mu.Lock()
	before := f.before
	f.mu.Unlock()
	if before != nil {
		if err := before(ctx, op, id); err != nil {
			return err
		}
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return fmt.Errorf("%s: %w", op, runtime.ErrUnreachable)
	}
	return nil
}

// change tells those who wait that the world is another; w.mu is held.
func (w *world) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *world) nextID() string {
	w.serial++
	return fmt.Sprintf("%064x", w.serial)
}

// Containers implements runtime.Runtime.
func (f *Fake) Containers(ctx context.Context) ([]runtime.Container, error) {
	if err := f.enter(ctx, "Containers", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Container
	for _, id := range slices.Sorted(maps.Keys(f.w.containers)) {
		if c := f.w.containers[id]; c.installation == f.installation {
			out = append(out, c.Container)
		}
	}
	return out, nil
}

// Volumes implements runtime.Runtime.
func (f *Fake) Volumes(ctx context.Context) ([]runtime.Volume, error) {
	if err := f.enter(ctx, "Volumes", ""); err != nil {
		return nil, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	var out []runtime.Volume
	for _, id := range slices.Sorted(maps.Keys(f.w.volumes)) {
		switch v := f.w.volumes[id]; v.installation {
		case f.installation:
			out = append(out, v.Volume)
		case "":
			out = append(out, runtime.Volume{Workspace: id, Storage: v.Storage, Foreign: true})
		}
	}
	return out, nil
}

// Mark implements runtime.Runtime.
func (f *Fake) Mark(ctx context.Context) (m workspace.Mark, found bool, err error) {
	if err := f.enter(ctx, "Mark", ""); err != nil {
		return m, false, err
	}
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(f.w.marks[f.installation])) {
		if o := f.w.marks[f.installation][id]; !found || o.Serial >= m.Serial {
			m, found = o, true
		}
	}
	return m, found, nil
}

// SetMark implements runtime.Runtime.
func (f *Fake) SetMark(ctx context.Context, m workspace.Mark) error {
	if err := f.enter(ctx, "SetMark", ""); err != nil {
		return err
	}
	f.w.mu.Lock()
	marks := f.w.marks[f.installation]
	if marks == nil {
		marks = map[string]workspace.Mark{}
		f.w.marks[f.installation] = marks
	}
	if _, there := marks[m.ID]; !there {
		marks[m.ID] = m
	}
	maps.DeleteFunc(marks, func(_ string, o workspace.Mark) bool { return o.Serial < m.Serial })
	f.w.change()
	f.w.mu.Unlock()
	return f.step(ctx, "SetMark/done", "")
}

// TakeMarks removes all marks of this installation, as somebody who prunes
// volumes does.
func (f *Fake) TakeMarks() {
	f.w.mu.Lock()
	defer f.w.mu.Unlock()
	delete(f.w.marks, f.installation)
	f.w.change()
}

// Prepare implements runtime.Runtime.
func (f *Fake) Prepare(ctx context.Context) error {
	if err := f.enter(ctx, "Prepare", ""); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prepareErr
}
